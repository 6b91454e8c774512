package order

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/services/events"
)

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 20 * time.Second

const twoWidgets = `{"customer_id":"alice","currency":"EUR","items":[{"sku":"widget","quantity":2}]}`

// system is one Farandole system on a server, with the order service's bucket.
type system struct {
	tb     testing.TB
	server *bustest.TestServer
	bus    *bus.Bus // of the other services and of observers
}

func newSystem(tb testing.TB, server *bustest.TestServer) *system {
	tb.Helper()
	b := bustest.Connect(tb, bus.Config{InProcess: server, Names: bus.Names{Prefix: bustest.Prefix()}})
	return &system{tb: tb, server: server, bus: bustest.Provision(tb, b, bus.TopologyConfig{Buckets: []string{Bucket}})}
}

// process is one running order service with a connection of its own.
type process struct {
	*Service
	s    *system
	url  string
	stop func()
}

// config retries soon. The timeouts stay the real ones: on a busy machine
// shorter ones would make failures that no test asked for.
func config() Config {
	return Config{Consumer: consumer.Config{
		Retry: consumer.RetryPolicy{BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	}}
}

// start runs an order service. wrap, which may be nil, puts something around
// its store. It is stopped at the end of the test, or earlier by stop.
func (s *system) start(cfg Config, wrap func(store) store) *process {
	s.tb.Helper()
	b := bustest.Connect(s.tb, bus.Config{InProcess: s.server, Names: s.bus.Names()})
	svc, err := New(b, cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	if wrap != nil {
		open := svc.open
		svc.open = func(ctx context.Context) (store, error) {
			st, err := open(ctx)
			return wrap(st), err
		}
	}
	web := httptest.NewServer(svc.Handler())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	p := &process{Service: svc, s: s, url: web.URL}
	p.stop = sync.OnceFunc(func() {
		web.Close()
		cancel()
		if err := <-done; err != nil {
			s.tb.Errorf("Run: %v", err)
		}
	})
	s.tb.Cleanup(p.stop)
	bustest.Eventually(s.tb, soon, func() error { return p.Health() })
	return p
}

// answer is an HTTP response, read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (p *process) do(method, path string, header map[string]string, body string) (answer, error) {
	r, err := http.NewRequestWithContext(p.s.tb.Context(), method, p.url+path, bytes.NewBufferString(body))
	if err != nil {
		return answer{}, err
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(data)}, err
}

// call is do for the test's own goroutine.
func (p *process) call(method, path string, header map[string]string, body string) answer {
	p.s.tb.Helper()
	a, err := p.do(method, path, header, body)
	if err != nil {
		p.s.tb.Fatal(err)
	}
	return a
}

func key(k string) map[string]string { return map[string]string{"Idempotency-Key": k} }

// order places an order and returns its id.
func (p *process) order(k string) string {
	p.s.tb.Helper()
	a := p.call(http.MethodPost, "/orders", key(k), twoWidgets)
	if a.status != http.StatusAccepted {
		p.s.tb.Fatalf("POST /orders: %d %s", a.status, a.body)
	}
	return idOf(k)
}

func (p *process) record(id string) (Order, error) {
	st, err := p.store()
	if err != nil {
		return Order{}, err
	}
	o, _, err := st.Get(p.s.tb.Context(), bus.Key(id))
	return o, err
}

// becomes waits until an order has a status.
func (p *process) becomes(id string, want Status) {
	p.s.tb.Helper()
	bustest.Eventually(p.s.tb, soon, func() error {
		o, err := p.record(id)
		if err == nil && o.Status != want {
			err = fmt.Errorf("%s is %q, want %q", id, o.Status, want)
		}
		return err
	})
}

// publish stores events as another service would; ids are the drafts' or random.
func (s *system) publish(drafts ...bus.Draft) {
	s.tb.Helper()
	for _, d := range drafts {
		if err := s.send(d); err != nil {
			s.tb.Fatal(err)
		}
	}
}

func (s *system) send(d bus.Draft) error {
	e, err := s.bus.Seal(d)
	if err == nil {
		_, err = s.bus.Publish(s.tb.Context(), e)
	}
	return err
}

// settled waits until the order service's consumer has nothing left to do.
func (s *system) settled() {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() error {
		c, err := s.bus.JetStream().Consumer(s.tb.Context(), s.bus.Names().EventsStream(), string(Name))
		if err != nil {
			return err
		}
		if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Errorf("%d not delivered, %d not acknowledged", info.NumPending, info.NumAckPending)
		}
		return nil
	})
}

// stored returns the ids of the stored events of a type, by order.
func (s *system) stored(t bus.Type) map[string][]string {
	s.tb.Helper()
	ids := map[string][]string{}
	for _, e := range s.events(t) {
		id := string(bus.PartitionKey(e))
		ids[id] = append(ids[id], e.ID())
	}
	return ids
}

// events returns the stored events of a type, oldest first.
func (s *system) events(t bus.Type) (all []bus.Event) {
	s.tb.Helper()
	err := follow.Read(s.tb.Context(), s.bus, follow.Options{
		Filters: []string{s.bus.Names().TypeFilter(t)}, FromStart: true, NoFollow: true,
	}, func(m follow.Message) error {
		e, problem := m.Event()
		if problem != "" {
			return errors.New(problem)
		}
		all = append(all, e)
		return nil
	})
	if err != nil {
		s.tb.Fatal(err)
	}
	return all
}

// emitted returns the ids of the stored events of a type about one order.
func (s *system) emitted(t bus.Type, id string) []string {
	s.tb.Helper()
	return s.stored(t)[id]
}

// one fails the test unless exactly one event of the type was stored.
func (s *system) one(t bus.Type, id string) {
	s.tb.Helper()
	if ids := s.emitted(t, id); len(ids) != 1 {
		s.tb.Errorf("%d %s about %s, want 1: %v", len(ids), t, id, ids)
	}
}

func (s *system) none(t bus.Type, id string) {
	s.tb.Helper()
	if ids := s.emitted(t, id); len(ids) != 0 {
		s.tb.Errorf("%s about %s was emitted: %v", t, id, ids)
	}
}

// What the other services say of an order of two widgets.

func items() []events.Item { return []events.Item{{SKU: "widget", Quantity: 2}} }

func captured(id string) bus.Draft {
	return events.PaymentCaptured.New(bus.Key(id), events.Captured{
		OrderID: id, ChargeID: "ch-" + id, Amount: events.Money{Amount: 5000, Currency: "EUR"}, Items: items(),
	})
}

func reserved(id string) bus.Draft {
	return events.InventoryReserved.New(bus.Key(id), events.Reserved{OrderID: id, Items: items()})
}

func declined(id string) bus.Draft {
	return events.PaymentDeclined.New(bus.Key(id), events.Declined{OrderID: id, Reason: "no funds"})
}

func refunded(id string) bus.Draft {
	return events.PaymentRefunded.New(bus.Key(id), events.Refunded{OrderID: id, Amount: events.Money{Amount: 5000, Currency: "EUR"}})
}

// faultyStore fails Puts as told: before the write, or after it, as when a
// process dies or its acknowledgement is lost.
type faultyStore struct {
	store
	before, after func(o Order) bool
}

var errFault = errors.New("injected fault")

func (f *faultyStore) Put(ctx context.Context, k bus.Key, o Order, revision uint64) (uint64, error) {
	if f.before != nil && f.before(o) {
		return 0, errFault
	}
	revision, err := f.store.Put(ctx, k, o, revision)
	if err == nil && f.after != nil && f.after(o) {
		return 0, errFault
	}
	return revision, err
}

// times returns a fault that strikes n times for what match says.
func times(n int, match func(o Order) bool) func(o Order) bool {
	var mu sync.Mutex
	return func(o Order) bool {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || !match(o) {
			return false
		}
		n--
		return true
	}
}

func parse[T any](tb testing.TB, body string) (v T) {
	tb.Helper()
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		tb.Fatalf("%v: %s", err, body)
	}
	return v
}

// serve runs a service's HTTP interface only.
func serve(tb testing.TB, s *Service) string {
	tb.Helper()
	web := httptest.NewServer(s.Handler())
	tb.Cleanup(web.Close)
	return web.URL
}
