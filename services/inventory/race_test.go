package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	diesAfter // and its event does not come again: another replica is done with it
)

var errDied = errors.New("died")

func (s turns) take(call func() error) error {
	a := ask{worker: s.worker, turn: make(chan turn)}
	s.asks <- a
	t := <-a.turn
	if t == failsBefore {
		return errInjected
	}
	err := call()
	switch {
	case t == diesAfter:
		return errDied
	case t == failsAfter && err == nil:
		return errInjected
	}
	return err
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

// However the calls of replicas meet that were given the same events, some of
// them stalled, failing or dying: every run for one event emits the same, no
// stock is lost, and when a replica has started after it none is held for an
// order that has ended.
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
				if out[i] == died {
					continue
				}
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
		case "cancelled":
			run(capture, capture, second)
			run(cancel, cancel)
		case "confirmed":
			run(capture, capture, second, confirm, confirm)
		}
		s, err := New(b, Config{})
		if err != nil {
			rt.Fatal(err)
		}
		if err := s.sweep(t.Context(), m); err != nil {
			rt.Fatal(err)
		}
		o := m.orders["ord-1"]
		for _, item := range items {
			want := Stock{SKU: item.SKU, Initial: m.skus[item.SKU].Initial}
			switch o.Status {
			case Settled:
				want.Reserved = item.Quantity
			case Rejected, Released:
			default:
				rt.Fatalf("order ends as %q", o.Status)
			}
			want.Available = want.Initial - want.Reserved
			if x := m.skus[item.SKU]; fmt.Sprint(x) != fmt.Sprint(want) {
				rt.Fatalf("order is %s: %+v, want %+v", o.Status, x, want)
			}
		}
	})
}

// died is what a replica emits that has died.
const died = "died"

// interleave gives each event to a replica of its own, lets them take turns,
// and returns what each has emitted when it succeeded in the end.
func interleave(rt *rapid.T, b *bus.Bus, m *memory, given []bus.Event) []string {
	asks := make(chan ask)
	out := make([]string, len(given))
	errs := make([]error, len(given))
	done := map[string]bool{} // by event
	for i, e := range given {
		s, err := New(b, Config{})
		if err != nil {
			rt.Fatal(err)
		}
		s.use(turns{memory: m, worker: i, asks: asks})
		go func() {
			defer func() { asks <- ask{worker: i, done: true} }()
			if bus.Type(e.Type()) == events.OrderConfirmed.Type() && !mayConfirm(m, i, asks) {
				return
			}
			for {
				step, err := bustest.Handle(context.Background(), s.Registry(), Name, e)
				if errors.Is(err, errInjected) {
					continue // redelivered
				}
				if errs[i] = err; errors.Is(err, errDied) {
					out[i] = died
				}
				for _, o := range step {
					out[i] += fmt.Sprintf("%s %s ", o.Type(), o.Data())
				}
				return
			}
		}()
	}
	waiting := map[int]ask{}
	chosen, burst := 0, 0
	for live, faults := len(given), 0; live > 0; {
		for len(waiting) < live {
			if a := <-asks; a.done {
				live--
				done[given[a.worker].ID()] = true
			} else {
				waiting[a.worker] = a
			}
		}
		if live == 0 {
			break
		}
		if _, ready := waiting[chosen]; burst == 0 || !ready {
			chosen = rapid.SampledFrom(slices.Sorted(maps.Keys(waiting))).Draw(rt, "worker")
			burst = rapid.SampledFrom([]int{1, 2, 5, 20}).Draw(rt, "burst") // the others stall
		}
		burst--
		what := works
		if faults < 3 {
			what = rapid.SampledFrom([]turn{works, works, works, works, failsBefore, failsAfter}).Draw(rt, "turn")
		}
		if what != works {
			faults++
		}
		if done[given[chosen].ID()] && rapid.IntRange(0, 9).Draw(rt, "dies") == 0 {
			what = diesAfter
		}
		a := waiting[chosen]
		delete(waiting, chosen)
		a.turn <- what
	}
	for i, err := range errs {
		if err != nil && !errors.Is(err, errDied) {
			rt.Fatalf("%s: %v", given[i].ID(), err)
		}
	}
	return out
}

// mayConfirm waits until the order is decided, as its confirmation does not come
// earlier, and says whether it comes at all.
func mayConfirm(m *memory, worker int, asks chan<- ask) bool {
	for {
		a := ask{worker: worker, turn: make(chan turn)}
		asks <- a
		<-a.turn
		switch m.orders["ord-1"].Status {
		case Reserved, Settled:
			return true
		case Rejected, Released:
			return false
		case "", Reserving:
		}
	}
}
