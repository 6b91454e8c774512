package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/services/events"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// memory is a store in memory that can fail at one call.
type memory struct {
	mu       sync.Mutex
	orders   map[string]Order
	skus     map[string]Stock
	revision map[string]uint64
	last     uint64

	calls  int
	failAt int  // the number of the call that fails; 0 for none
	after  bool // it fails after it took effect
}

var errInjected = errors.New("injected")

func newMemory(stock map[string]int64) *memory {
	m := &memory{orders: map[string]Order{}, skus: map[string]Stock{}, revision: map[string]uint64{}}
	for sku, n := range stock {
		m.put("sku-" + sku)
		m.skus[sku] = Stock{SKU: sku, Initial: n, Available: n}
	}
	return m
}

func (m *memory) put(key string) uint64 { m.last++; m.revision[key] = m.last; return m.last }

func (m *memory) fails(after bool) bool { return m.calls == m.failAt && m.after == after }

func (m *memory) order(_ context.Context, id string) (Order, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.calls == m.failAt {
		return Order{}, 0, errInjected
	}
	o := m.orders[id]
	o.ID = id
	return o, m.revision["order-"+id], nil
}

func (m *memory) putOrder(_ context.Context, o Order, revision uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.fails(false) {
		return 0, errInjected
	}
	if m.revision["order-"+o.ID] != revision {
		return 0, bus.ErrConflict
	}
	m.orders[o.ID] = o
	next := m.put("order-" + o.ID)
	if m.fails(true) {
		return 0, errInjected
	}
	return next, nil
}

func (m *memory) stock(_ context.Context, sku string) (Stock, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.calls == m.failAt {
		return Stock{}, 0, errInjected
	}
	x := m.skus[sku]
	x.SKU = sku
	return x, m.revision["sku-"+sku], nil
}

func (m *memory) putStock(_ context.Context, x Stock, revision uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.fails(false) {
		return errInjected
	}
	if m.revision["sku-"+x.SKU] != revision {
		return bus.ErrConflict
	}
	m.skus[x.SKU] = x
	m.put("sku-" + x.SKU)
	if m.fails(true) {
		return errInjected
	}
	return nil
}

func (m *memory) allStock(context.Context) (all []Stock, err error) {
	for _, x := range m.skus {
		all = append(all, x)
	}
	return all, nil
}

func service(t *testing.T, st store) *Service {
	t.Helper()
	s, err := New(bustest.NewBus(t), Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.use(st)
	return s
}

func captured(t *testing.T, id, eventID string, items ...events.Item) bus.Event {
	t.Helper()
	d := events.PaymentCaptured.New(bus.Key(id), events.Captured{
		OrderID: id, ChargeID: "ch-1", Amount: events.Money{Amount: 1, Currency: "EUR"}, Items: items,
	})
	d.ID = eventID
	return bustest.Event(t, d)
}

func cancelled(t *testing.T, id, eventID string) bus.Event {
	t.Helper()
	d := events.OrderCancelRequested.New(bus.Key(id), events.CancelRequested{OrderID: id})
	d.ID = eventID
	return bustest.Event(t, d)
}

func confirmed(t *testing.T, id, eventID string) bus.Event {
	t.Helper()
	d := events.OrderConfirmed.New(bus.Key(id), events.Confirmed{OrderID: id})
	d.ID = eventID
	return bustest.Event(t, d)
}

// handle runs a handler until it succeeds, as redeliveries would.
func handle(t *testing.T, s *Service, e bus.Event) (types string) {
	t.Helper()
	for range 10 {
		out, err := bustest.Handle(t.Context(), s.Registry(), Name, e)
		if errors.Is(err, errInjected) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			types += o.Type() + " "
		}
		return types
	}
	t.Fatal("does not converge")
	return ""
}

// Whatever single store call fails, before or after it took effect, the reruns
// end in the same events and the same stock.
func TestEveryCrashPointConverges(t *testing.T) {
	t.Parallel()
	widget, anvil := events.Item{SKU: "widget", Quantity: 2}, events.Item{SKU: "anvil", Quantity: 3}
	for _, tc := range []struct {
		name  string
		items []events.Item
		then  func(t *testing.T, id, eventID string) bus.Event
		first string
		widgt Stock
	}{
		{"reserved and confirmed", []events.Item{widget, anvil}, confirmed, "inventory.reserved.v1 ", Stock{Available: 8, Reserved: 2}},
		{"reserved and cancelled", []events.Item{widget, anvil}, cancelled, "inventory.reserved.v1 ", Stock{Available: 10}},
		{"short", []events.Item{widget, {SKU: "unicorn", Quantity: 1}}, cancelled, "inventory.rejected.v1 ", Stock{Available: 10}},
		{"unknown SKU", []events.Item{widget, {SKU: "nonsense", Quantity: 1}}, confirmed, "inventory.rejected.v1 ", Stock{Available: 10}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := service(t, nil)
			for at := 1; ; at++ {
				reached := true
				for _, after := range []bool{false, true} {
					m := newMemory(map[string]int64{"widget": 10, "anvil": 10, "unicorn": 0})
					m.failAt, m.after = at, after
					s.use(m)
					if got := handle(t, s, captured(t, "ord-1", "e1", tc.items...)); got != tc.first {
						t.Fatalf("call %d: emitted %q, want %q", at, got, tc.first)
					}
					handle(t, s, tc.then(t, "ord-1", "e2"))
					for _, x := range m.skus {
						conserved(t, x)
						if len(x.Holds) > 0 {
							t.Fatalf("call %d: still held: %+v", at, x)
						}
					}
					if x := m.skus["widget"]; x.Available != tc.widgt.Available || x.Reserved != tc.widgt.Reserved {
						t.Fatalf("call %d: widget %+v", at, x)
					}
					reached = m.calls >= at
				}
				if !reached {
					return
				}
			}
		})
	}
}

func TestB87_RerunEmitsTheSame(t *testing.T) {
	t.Parallel()
	s := service(t, newMemory(map[string]int64{"widget": 10}))
	e := captured(t, "ord-1", "e1", events.Item{SKU: "widget", Quantity: 1})
	first, second := handle(t, s, e), handle(t, s, e)
	if first != "inventory.reserved.v1 " || second != first {
		t.Fatalf("%q, then %q", first, second)
	}
}

func TestB84_SecondTriggerWithAnotherIDDoesNothing(t *testing.T) {
	t.Parallel()
	m := newMemory(map[string]int64{"widget": 10})
	s := service(t, m)
	item := events.Item{SKU: "widget", Quantity: 4}
	handle(t, s, captured(t, "ord-1", "e1", item))
	if again := handle(t, s, captured(t, "ord-1", "e2", item)); again != "" {
		t.Fatalf("second capture emitted %q", again)
	}
	var wg sync.WaitGroup
	out := make([]string, 2)
	for i := range out {
		wg.Go(func() { out[i] = handle(t, s, cancelled(t, "ord-1", fmt.Sprintf("c%d", i))) })
	}
	wg.Wait()
	if got := out[0] + out[1]; got != "inventory.released.v1 " {
		t.Fatalf("two cancellations released %q", got)
	}
	if x := m.skus["widget"]; x.Available != 10 {
		t.Fatalf("%+v", x)
	}
}

func TestCancelBeforeCaptureReservesNothing(t *testing.T) {
	t.Parallel()
	m := newMemory(map[string]int64{"widget": 10})
	s := service(t, m)
	if got := handle(t, s, cancelled(t, "ord-1", "c1")); got != "inventory.released.v1 " {
		t.Fatalf("emitted %q", got)
	}
	if got := handle(t, s, captured(t, "ord-1", "e1", events.Item{SKU: "widget", Quantity: 1})); got != "inventory.rejected.v1 " {
		t.Fatalf("emitted %q", got)
	}
	if x := m.skus["widget"]; x.Available != 10 || len(x.Holds) != 0 {
		t.Fatalf("%+v", x)
	}
}

// Many runs at once need far fewer writes than changes, and none gets lost.
func TestChangesOfOneSKUAreWrittenTogether(t *testing.T) {
	t.Parallel()
	m := newMemory(map[string]int64{"widget": 1000})
	d := &desk{}
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			err := d.do(t.Context(), m, "widget", func(x Stock) (Stock, bool) { return x.hold(fmt.Sprint(i), 1, 1) })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	x := m.skus["widget"]
	conserved(t, x)
	if len(x.Holds) != 500 || d.busy || len(d.queue) != 0 {
		t.Fatalf("%d holds, busy %v, %d waiting", len(x.Holds), d.busy, len(d.queue))
	}
}

func TestManyOrdersForOneSKUNeverOversell(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	if _, err := b.Provision(t.Context(), b.Topology(bus.TopologyConfig{Buckets: []string{Bucket}})); err != nil {
		t.Fatal(err)
	}
	s, err := New(b, Config{Stock: map[string]int64{"widget": 30}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for i := range 60 {
		id := fmt.Sprintf("ord-%d", i)
		if _, err := b.Publish(t.Context(), captured(t, id, id, events.Item{SKU: "widget", Quantity: 1})); err != nil {
			t.Fatal(err)
		}
	}
	bustest.Eventually(t, 20*time.Second, func() error {
		if n := s.Stats().Handled; n != 60 {
			return fmt.Errorf("handled %d", n)
		}
		return nil
	})
	st, err := s.opened()
	if err != nil {
		t.Fatal(err)
	}
	x, _, err := st.stock(t.Context(), "widget")
	if err != nil {
		t.Fatal(err)
	}
	conserved(t, x)
	if x.Available != 0 || len(x.Holds) != 30 {
		t.Fatalf("available %d, held for %d orders", x.Available, len(x.Holds))
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
