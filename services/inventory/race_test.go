package inventory

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/services/events"
)

// turns is a store whose calls wait for their turn, so that a test chooses how
// the calls of several replicas are interleaved and which of them fail.
type turns struct {
	*memory
	worker int
	asks   chan ask
}

// ask is a worker that wants to make a call, or is done.
type ask struct {
	worker int
	done   bool
	turn   chan turn
}

// turn is what becomes of one call.
type turn int

const (
	works turn = iota
	failsBefore
	failsAfter
)

func (s turns) take(call func() error) error {
	a := ask{worker: s.worker, turn: make(chan turn)}
	s.asks <- a
	switch t := <-a.turn; t {
	case failsBefore:
		return errInjected
	case failsAfter:
		if err := call(); err != nil {
			return err
		}
		return errInjected
	default:
		return call()
	}
}

func (s turns) order(ctx context.Context, id string) (o Order, revision uint64, err error) {
	err = s.take(func() error { o, revision, err = s.memory.order(ctx, id); return err })
	return o, revision, err
}

func (s turns) putOrder(ctx context.Context, o Order, revision uint64) (next uint64, err error) {
	err = s.take(func() error { next, err = s.memory.putOrder(ctx, o, revision); return err })
	return next, err
}

func (s turns) stock(ctx context.Context, sku string) (x Stock, revision uint64, err error) {
	err = s.take(func() error { x, revision, err = s.memory.stock(ctx, sku); return err })
	return x, revision, err
}

func (s turns) putStock(ctx context.Context, x Stock, revision uint64) error {
	return s.take(func() error { return s.memory.putStock(ctx, x, revision) })
}

// However the calls of replicas meet that were given the same events, one of
// them stalled or failing: every run for one event emits the same, no stock is
// lost, and none stays held for an order that has ended.
func TestReplicasInterleaved(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	items := []events.Item{{SKU: "widget", Quantity: 2}, {SKU: "anvil", Quantity: 3}}
	capture := captured(t, "ord-1", "e1", items...)
	second := captured(t, "ord-1", "e2", items...)
	cancel := cancelled(t, "ord-1", "c1")
	confirm := confirmed(t, "ord-1", "f1")

	rapid.Check(t, func(rt *rapid.T) {
		anvils := rapid.SampledFrom([]int64{2, 10}).Draw(rt, "anvils")
		m := newMemory(map[string]int64{"widget": 10, "anvil": anvils})
		emitted := map[string]string{} // by event, by whoever was first
		run := func(given ...bus.Event) {
			out := interleave(rt, b, m, given)
			for i, e := range given {
				if before, known := emitted[e.ID()]; known && before != out[i] {
					rt.Fatalf("%s emitted %q, and %q in another run", e.ID(), before, out[i])
				}
				emitted[e.ID()] = out[i]
			}
		}
		ending := rapid.SampledFrom([]string{"cancelled meanwhile", "cancelled", "confirmed"}).Draw(rt, "ending")
		switch ending {
		case "cancelled meanwhile":
			run(capture, capture, second, cancel)
			run(capture, cancel, cancel)
		case "cancelled":
			run(capture, capture, second)
			run(cancel, cancel, capture)
		case "confirmed":
			run(capture, capture, second)
			if m.orders["ord-1"].Status == Reserved {
				run(confirm, confirm, capture)
			}
		}
		o := m.orders["ord-1"]
		for _, x := range m.skus {
			left, held := x.Available+x.Reserved, int64(0)
			for _, h := range x.Holds {
				held += h.Quantity
			}
			if left+held != x.Initial || x.Available < 0 {
				rt.Fatalf("not conserved: %+v", x)
			}
			if held > 0 {
				rt.Fatalf("%s is held for an order that is %s: %+v", x.SKU, o.Status, x)
			}
			if gone := x.Reserved > 0; gone != (o.Status == Settled) {
				rt.Fatalf("order is %s: %+v", o.Status, x)
			}
		}
	})
}

// interleave gives each event to a replica of its own, lets them take turns,
// and returns what each has emitted when it succeeded in the end.
func interleave(rt *rapid.T, b *bus.Bus, m *memory, given []bus.Event) []string {
	asks := make(chan ask)
	out := make([]string, len(given))
	errs := make([]error, len(given))
	for i, e := range given {
		s, err := New(b, Config{})
		if err != nil {
			rt.Fatal(err)
		}
		s.use(turns{memory: m, worker: i, asks: asks})
		go func() {
			defer func() { asks <- ask{worker: i, done: true} }()
			for {
				step, err := bustest.Handle(context.Background(), s.Registry(), Name, e)
				if errors.Is(err, errInjected) {
					continue // redelivered
				}
				errs[i] = err
				for _, o := range step {
					out[i] += fmt.Sprintf("%s %s ", o.Type(), o.Data())
				}
				return
			}
		}()
	}
	waiting := map[int]ask{}
	for live, faults := len(given), 0; live > 0; {
		for len(waiting) < live {
			if a := <-asks; a.done {
				live--
			} else {
				waiting[a.worker] = a
			}
		}
		if live == 0 {
			break
		}
		var ready []int
		for i := range given {
			if _, ok := waiting[i]; ok {
				ready = append(ready, i)
			}
		}
		chosen := rapid.SampledFrom(ready).Draw(rt, "worker")
		what := works
		if faults < 3 {
			what = rapid.SampledFrom([]turn{works, works, works, works, failsBefore, failsAfter}).Draw(rt, "turn")
		}
		if what != works {
			faults++
		}
		a := waiting[chosen]
		delete(waiting, chosen)
		a.turn <- what
	}
	for i, err := range errs {
		if err != nil {
			rt.Fatalf("%s: %v", given[i].ID(), err)
		}
	}
	return out
}
