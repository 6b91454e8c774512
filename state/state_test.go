package state_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
	"github.com/farandole/farandole/topology"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// stock is a document that many steps change.
type stock struct {
	Available int `json:"available"`
}

// shop is one process: a ledger with its documents.
type shop struct {
	*testing.T
	bus    *bus.Bus
	ledger *deduptest.Owner
	stocks *state.Store[stock]
	orders *state.Store[string]
}

// open opens the process that owns a partition.
func open(t *testing.T, b *bus.Bus, partition int) *shop {
	t.Helper()
	pages, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l := deduptest.NewOwner(pages, partition)
	s := &shop{T: t, bus: b, ledger: l}
	if s.stocks, err = state.Of[stock](b, l, "inventory"); err != nil {
		t.Fatal(err)
	}
	if s.orders, err = state.Of[string](b, l, "inventory"); err != nil {
		t.Fatal(err)
	}
	return s
}

// step runs handler as a consumer would, until its changes are committed; it
// returns how often it ran.
func (s *shop) step(id string, handler func() ([]state.Change, error)) (runs int, err error) {
	ctx := context.Background()
	c, err := s.ledger.Claim(ctx, dedup.Request{Consumer: "inventory", Key: event.NewEventKey("/shop", id), Lease: time.Minute})
	if err != nil {
		return 0, err
	}
	for {
		runs++
		changes, err := handler()
		if err != nil {
			return runs, err
		}
		msgs, err := state.Messages(s.ledger, changes, nil)
		if err != nil {
			return runs, err
		}
		if err = s.ledger.Complete(ctx, c, msgs); !errors.Is(err, dedup.ErrStale) {
			return runs, err
		}
	}
}

// reserve takes one piece of each SKU and notes the order.
func (s *shop) reserve(id string, skus ...string) func() ([]state.Change, error) {
	return func() ([]state.Change, error) {
		ctx := context.Background()
		order, err := s.orders.Get(ctx, event.Key("order-"+id))
		if err != nil {
			return nil, err
		}
		changes := []state.Change{order.Put("reserved")}
		for _, sku := range skus {
			d, err := s.stocks.Get(ctx, event.Key("sku-"+sku))
			if err != nil {
				return nil, err
			}
			d.Value.Available--
			changes = append(changes, d.Put(d.Value))
		}
		return changes, nil
	}
}

func (s *shop) seed(n int, skus ...string) {
	s.Helper()
	for _, sku := range skus {
		if err := s.stocks.Create(s.Context(), event.Key("sku-"+sku), stock{n}); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *shop) available(sku string) int {
	s.Helper()
	d, err := s.stocks.Committed(s.Context(), event.Key("sku-"+sku))
	if err != nil {
		s.Fatal(err)
	}
	return d.Value.Available
}

// Hundreds of steps at once on the same few documents, in two processes: each
// takes effect once, with all its documents.
func TestHot_documents(t *testing.T) {
	t.Parallel()
	b := bustest.Connect(t, bus.Config{
		InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()},
		PublishTimeout: time.Minute, // on a busy machine the steps of one document take long, in a row
	})
	bustest.Provision(t, b, topology.Config{})
	shops := []*shop{open(t, b, 1), open(t, b, 2)}
	const n = 200
	shops[0].seed(n, "widget", "gadget")
	var wg sync.WaitGroup
	var runs atomic.Int64
	for i := range n {
		s := shops[0]
		if i%10 == 0 {
			s = shops[1]
		}
		wg.Go(func() {
			id := fmt.Sprint(i)
			skus := []string{"widget", "gadget"}
			if i%2 == 1 {
				skus = []string{"gadget", "widget"}
			}
			r, err := s.step(id, s.reserve(id, skus...))
			if err != nil {
				t.Errorf("step %s: %v", id, err)
			}
			runs.Add(int64(r))
		})
	}
	wg.Wait()
	for _, sku := range []string{"widget", "gadget"} {
		if left := shops[0].available(sku); left != 0 {
			t.Errorf("%d of %s left, want 0", left, sku)
		}
	}
	orders := 0
	err := b.Scan(t.Context(), b.Names().EventsStream(), b.Names().StateFilter("inventory"), func(subject string, _ uint64, _ []byte) error {
		if strings.Contains(subject, ".order-") {
			orders++
		}
		return nil
	})
	if err != nil || orders != n {
		t.Errorf("%d orders, %v, want %d", orders, err, n)
	}
	t.Logf("%d runs for %d steps", runs.Load(), n)
}

// A step that can never be stored fails alone; the steps queued beside it are stored.
func TestRow_with_a_failing_step(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := open(t, b, 1)
	const n = 60
	s.seed(n, "widget")
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprint(i)
			handler := s.reserve(id, "widget")
			if i%10 != 7 {
				if _, err := s.step(id, handler); err != nil {
					t.Errorf("step %s: %v", id, err)
				}
				return
			}
			_, err := s.step(id, func() ([]state.Change, error) {
				d, err := s.stocks.Get(context.Background(), "sku-widget")
				return []state.Change{d.Put(stock{-1000}), oversized(s, id)}, err
			})
			if !errors.Is(err, bus.ErrTooLarge) {
				t.Errorf("step %s: got %v, want ErrTooLarge", id, err)
			}
		})
	}
	wg.Wait()
	if left := s.available("widget"); left != n/10 {
		t.Errorf("%d left, want %d", left, n/10)
	}
}

func oversized(s *shop, id string) state.Change {
	d, err := s.orders.Get(context.Background(), event.Key("big-"+id))
	if err != nil {
		s.Error(err)
	}
	return d.Put(strings.Repeat("x", int(s.bus.Conn().MaxPayload())))
}

// A deleted document is gone. A step that has read it before the deletion runs again.
func TestDelete_and_stale(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := open(t, b, 1)
	s.seed(1, "widget")
	if err := s.stocks.Create(t.Context(), "sku-widget", stock{2}); !errors.Is(err, bus.ErrConflict) {
		t.Fatalf("create again: got %v, want ErrConflict", err)
	}
	before, err := s.stocks.Get(t.Context(), "sku-widget")
	if err != nil || !before.Exists || before.Value.Available != 1 {
		t.Fatalf("got %+v, %v", before, err)
	}
	if _, err := s.step("1", func() ([]state.Change, error) { return []state.Change{before.Delete()}, nil }); err != nil {
		t.Fatal(err)
	}
	gone, err := s.stocks.Get(t.Context(), "sku-widget")
	if err != nil || gone.Exists {
		t.Fatalf("after its deletion: %+v, %v", gone, err)
	}
	runs, err := s.step("2", func() ([]state.Change, error) {
		d := before // read before the deletion
		before, err = s.stocks.Get(t.Context(), "sku-widget")
		return []state.Change{d.Put(stock{5})}, err
	})
	if err != nil || runs != 2 {
		t.Fatalf("a step based on a deleted document: %d runs, %v", runs, err)
	}
	if s.available("widget") != 5 {
		t.Fatal("not written anew")
	}
	var tokens []string
	if err := s.stocks.Each(t.Context(), func(token string, v stock) error {
		tokens = append(tokens, fmt.Sprint(token, v.Available))
		return nil
	}); err != nil || strings.Join(tokens, " ") != "sku-widget5" {
		t.Fatalf("listing: %v, %v", tokens, err)
	}
}

func TestMessages_refuses(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s, other := open(t, b, 1), open(t, b, 2)
	d, err := s.stocks.Get(t.Context(), "sku-widget")
	if err != nil {
		t.Fatal(err)
	}
	strange, err := state.Of[chan int](b, s.ledger, "inventory")
	if err != nil {
		t.Fatal(err)
	}
	c, err := strange.Get(t.Context(), "sku-gadget")
	if err != nil {
		t.Fatal(err)
	}
	for want, changes := range map[string][]state.Change{
		"changed twice": {d.Put(stock{1}), d.Delete()},
		"not made with": {{}},
		"chan int":      {c.Put(nil)},
	} {
		if _, err := state.Messages(s.ledger, changes, nil); !errors.Is(err, state.ErrChange) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := state.Messages(other.ledger, []state.Change{d.Put(stock{1})}, nil); !errors.Is(err, state.ErrChange) {
		t.Errorf("another ledger: got %v, want ErrChange", err)
	}
	if _, err := state.Of[stock](b, s.ledger, "Not A Name"); !errors.Is(err, event.ErrInvalidConsumer) {
		t.Errorf("got %v, want ErrInvalidConsumer", err)
	}
}

func TestGet_what_is_no_document(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := open(t, b, 1)
	if err := s.orders.Create(t.Context(), "sku-widget", "text"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.stocks.Get(t.Context(), "sku-widget"); !errors.Is(err, state.ErrDecode) {
		t.Fatalf("got %v, want ErrDecode", err)
	}
	if err := s.stocks.Each(t.Context(), func(string, stock) error { return nil }); !errors.Is(err, state.ErrDecode) {
		t.Fatalf("got %v, want ErrDecode", err)
	}
}
