package inventory

import (
	"fmt"
	"sync"
	"testing"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Two instances get many orders for the same few SKUs at once, more than there is
// stock for. Each payment comes twice with one id and once more with another. Half
// of the orders are cancelled at the same moment.
func TestMany_orders_on_few_SKUs(t *testing.T) {
	t.Parallel()
	const n = 80
	s := newSystem(t, map[string]int64{"widget": 10 * n, "gadget": n / 2, "anvil": n / 4})
	s.start(s.initial)
	items := func(i int) []events.Item {
		widget, gadget, anvil := of("widget", 2), of("gadget", 1), of("anvil", 1)
		switch i % 4 {
		case 0:
			return []events.Item{widget, gadget}
		case 1:
			return []events.Item{gadget, widget}
		case 2:
			return []events.Item{widget, anvil, gadget}
		default:
			return []events.Item{widget}
		}
	}
	id := func(i int) string { return fmt.Sprint("ord-", i) }
	s.atOnce(n, func(i int) error { return s.store(captured(id(i), items(i)...), 2) },
		func(i int) error { return s.store(captured(id(i), items(i)...), 1) },
		func(i int) error {
			if i%2 == 0 {
				return nil
			}
			return s.store(cancelRequested(id(i)), 1)
		})

	said := s.emitted()
	count := map[string]int{}
	for i := range n {
		count[said[id(i)]]++
	}
	for what := range count {
		switch what {
		case "reserved", "rejected", "reserved released", "released rejected", "rejected released":
		default:
			t.Errorf("said %q", what)
		}
	}
	if len(said) != n || count["reserved"] == 0 || count["rejected"] == 0 {
		t.Errorf("%d orders: %v", len(said), count)
	}
	s.stock()

	// Each reserved order is confirmed or cancelled. Both instances handle that, too.
	ends := map[string]Status{}
	for i := range n {
		if said[id(i)] == "reserved" {
			ends[id(i)] = Settled
			if i%3 == 0 {
				ends[id(i)] = Released
			}
		}
	}
	s.atOnce(n, func(i int) error {
		switch end, chosen := ends[id(i)]; {
		case !chosen:
			return nil
		case end == Settled:
			return s.store(confirmed(id(i)), 2)
		default:
			return s.store(cancelRequested(id(i)), 2)
		}
	})
	for _, o := range s.orders() {
		if want, chosen := ends[o.ID]; chosen && o.Status != want {
			t.Errorf("%s is %s, want %s", o.ID, o.Status, want)
		}
	}
	for _, x := range s.stock() {
		if x.Held != 0 {
			t.Errorf("still held at rest: %+v", x)
		}
	}
	if s.parked() > 0 {
		t.Errorf("%d dead letters", s.parked())
	}
	for i, svc := range s.instances {
		if svc.Stats().Handled == 0 {
			t.Errorf("instance %d did nothing", i)
		}
	}
}

// atOnce calls each function for each of n orders, all at the same time, and waits
// until the instances have handled what the functions publish.
func (s *system) atOnce(n int, publish ...func(i int) error) {
	s.Helper()
	var wg sync.WaitGroup
	for i := range n {
		for _, f := range publish {
			wg.Go(func() {
				if err := f(i); err != nil {
					s.Error(err)
				}
			})
		}
	}
	wg.Wait()
	s.settled()
}

// Exactly as many pieces of a SKU are held as there are.
func TestManyOrdersForOneSKUNeverOversell(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 30})
	s.start(s.initial)
	drafts := make([]event.Draft, 60)
	for i := range drafts {
		drafts[i] = captured(fmt.Sprint("ord-", i), of("widget", 1))
	}
	s.atOnce(len(drafts), func(i int) error { return s.store(drafts[i], 1) })
	s.is("widget", 0, 30, 0)
}
