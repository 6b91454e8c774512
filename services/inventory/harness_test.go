package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/rest"
	"github.com/farandole/farandole/services/events"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 60 * time.Second

// system is a system whose other services are the test.
type system struct {
	testing.TB
	bus       *bus.Bus
	initial   map[string]int64
	instances []*Service
	stored    atomic.Uint64 // events
}

// newSystem starts one inventory service with this stock.
func newSystem(tb testing.TB, stock map[string]int64) *system {
	tb.Helper()
	s := &system{TB: tb, bus: bustest.NewBus(tb), initial: stock}
	s.start(stock)
	return s
}

// start runs another instance, with a connection of its own, until the end of
// the test or until stop is called.
func (s *system) start(stock map[string]int64) (stop func()) {
	s.Helper()
	svc, stop := s.launch(Config{Stock: stock})
	bustest.Eventually(s.TB, soon, svc.Health)
	return stop
}

// launch is start without waiting until the instance is healthy.
func (s *system) launch(cfg Config) (svc *Service, stop func()) {
	s.Helper()
	b := bustest.Connect(s.TB, bus.Config{InProcess: bustest.Server(s.TB), Names: s.bus.Names()})
	cfg.Consumer.Retry = consumer.RetryPolicy{BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond}
	svc, err := New(b, cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.instances = append(s.instances, svc)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("Run: %v", err)
		}
	})
	s.Cleanup(stop)
	return svc, stop
}

// The events that other services emit about an order. Each call makes a new one.

func captured(id string, items ...events.Item) event.Draft {
	return events.PaymentCaptured.New(event.Key(id), events.Captured{
		OrderID: id, ChargeID: "ch-1", Amount: events.Money{Amount: 1, Currency: "EUR"}, Items: items,
	})
}

func cancelRequested(id string) event.Draft {
	return events.OrderCancelRequested.New(event.Key(id), events.CancelRequested{OrderID: id})
}

func confirmed(id string) event.Draft {
	return events.OrderConfirmed.New(event.Key(id), events.Confirmed{OrderID: id})
}

func of(sku string, quantity int64) events.Item { return events.Item{SKU: sku, Quantity: quantity} }

// says publishes events and waits until the service has handled or parked them.
func (s *system) says(drafts ...event.Draft) {
	s.Helper()
	for _, d := range drafts {
		if err := s.store(d, 1); err != nil {
			s.Fatal(err)
		}
	}
	s.settled()
}

// store stores an event as many times as copies says.
func (s *system) store(d event.Draft, copies int) error {
	e, err := s.bus.Seal(d)
	if err != nil {
		return err
	}
	for range copies {
		m, err := s.bus.Message(e)
		if err != nil {
			return err
		}
		m.Header.Del(nats.MsgIdHdr) // else the server drops a copy
		p, err := s.bus.Send(s.Context(), m)
		if err != nil {
			return err
		}
		if _, err := p.Wait(s.Context()); err != nil {
			return err
		}
		s.stored.Add(1)
	}
	return nil
}

// settled waits until the service has handled or parked all stored events. It counts
// them itself, because the server's count of pending messages lags behind. The server is
// asked, too, because an event whose partition changes hands may be counted twice.
func (s *system) settled() {
	s.Helper()
	bustest.Eventually(s.TB, soon, func() error {
		var ended uint64
		for _, i := range s.instances {
			st := i.Stats()
			ended += st.Handled + st.Duplicate + st.Parked
		}
		if stored := s.stored.Load(); ended < stored {
			return fmt.Errorf("%d of %d events done", ended, stored)
		}
		open, _, err := rest.Open(s.Context(), s.bus, Name)
		if err == nil && open > 0 {
			err = fmt.Errorf("%d events are open", open)
		}
		return err
	})
}

// parked returns how many events are in the dead letters.
func (s *system) parked() (n uint64) {
	for _, i := range s.instances {
		n += i.Stats().Parked
	}
	return n
}

// stock checks that all documents fit together and returns the SKUs'.
func (s *system) stock() map[string]Stock {
	s.Helper()
	st := s.instances[0].store
	all, err := st.stock(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	stock := map[string]Stock{}
	for _, x := range all {
		stock[x.SKU] = x
		if x.Initial != s.initial[x.SKU] {
			s.Errorf("%+v, want initially %d", x, s.initial[x.SKU])
		}
	}
	if !slices.Equal(slices.Sorted(maps.Keys(stock)), slices.Sorted(maps.Keys(s.initial))) {
		s.Errorf("there are %v, want %v", stock, s.initial)
	}
	if err := conserved(s.orders(), stock); err != nil {
		s.Error(err)
	}
	return stock
}

func (s *system) orders() (all []Order) {
	s.Helper()
	err := s.instances[0].store.orders.Each(s.Context(), func(token string, o Order) error {
		if strings.HasPrefix(token, "order-") {
			all = append(all, o)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// is checks a SKU: available, held and reserved pieces.
func (s *system) is(sku string, available, held, reserved int64) {
	s.Helper()
	x := s.stock()[sku]
	if x.Available != available || x.Held != held || x.Reserved != reserved {
		s.Errorf("%+v, want %d available, %d held, %d reserved", x, available, held, reserved)
	}
}

// emitted returns the types and reasons of the service's events by order, oldest first.
func (s *system) emitted() map[string]string {
	s.Helper()
	all := map[string]string{}
	err := follow.Read(s.Context(), s.bus, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		e, problem := m.Event()
		if problem != "" {
			return errors.New(problem)
		}
		action, ours := strings.CutPrefix(e.Type(), "inventory.")
		if id := string(event.PartitionKey(e)); ours {
			all[id] = strings.TrimSpace(all[id] + " " + strings.TrimSuffix(action, ".v1"))
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return all
}

func (s *system) said(id, want string) {
	s.Helper()
	if got := s.emitted()[id]; got != want {
		s.Errorf("about %s it said %q, want %q", id, got, want)
	}
}
