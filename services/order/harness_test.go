package order

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/topology"
)

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = time.Minute

// idOf is an id that no request has.
func idOf(name string) string { return "ord-" + name }

const twoWidgets = `{"customer_id":"alice","currency":"EUR","items":[{"sku":"widget","quantity":2}]}`

// system is one Farandole system on a server, with a database for the order service.
type system struct {
	tb     testing.TB
	server *bustest.TestServer
	bus    *bus.Bus // of the other services and of observers
	target string   // names the database
	db     *database.Database
}

// databases give a test an empty database of each kind.
var databases = map[string]func(tb testing.TB) (target string){
	"SQLite":   func(tb testing.TB) string { tb.Helper(); return filepath.Join(tb.TempDir(), "order.db") },
	"Postgres": pgtest.Database,
}

// eachDatabase runs a test on a system with each of them.
func eachDatabase(t *testing.T, test func(t *testing.T, s *system)) {
	t.Helper()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newSystem(t, bustest.Server(t), database(t)))
		})
	}
}

func newSystem(tb testing.TB, server *bustest.TestServer, target string) *system {
	tb.Helper()
	b := bustest.Connect(tb, bus.Config{InProcess: server, Names: event.Names{Prefix: bustest.Prefix()}})
	s := &system{tb: tb, server: server, target: target, bus: bustest.Provision(tb, b, topology.Config{})}
	s.db = s.open()
	return s
}

// open opens the database for a process.
func (s *system) open() *database.Database {
	s.tb.Helper()
	db, err := database.Open(s.target)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			s.tb.Error(err)
		}
	})
	return db
}

// exec changes the database by hand.
func (s *system) exec(statement string, args ...any) {
	s.tb.Helper()
	if _, err := s.db.DB.ExecContext(s.tb.Context(), statement, args...); err != nil {
		s.tb.Fatalf("%s: %v", statement, err)
	}
}

// remove deletes an order by hand, and all that requests were answered.
func (s *system) remove(id string) {
	s.tb.Helper()
	s.exec(`DELETE FROM orders WHERE order_id = $1`, id)
	s.exec(`DELETE FROM idempotency`)
}

// refuse makes the database fail the transactions that add a message to the
// outbox whose subject contains some text, until heal.
func (s *system) refuse(text string) (heal func()) {
	s.tb.Helper()
	if s.db.Dialect == outbox.SQLite {
		s.exec(`CREATE TRIGGER refuse BEFORE INSERT ON outbox WHEN NEW.subject LIKE '%` + text + `%'
			BEGIN SELECT RAISE(ABORT, 'injected fault'); END`)
		return func() { s.exec(`DROP TRIGGER refuse`) }
	}
	s.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'injected fault'; END $$`)
	s.exec(`CREATE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.subject LIKE '%` + text + `%') EXECUTE FUNCTION refuse()`)
	return func() { s.exec(`DROP TRIGGER refuse ON outbox`) }
}

// process is one running order service with connections of its own.
type process struct {
	*Service
	s   *system
	url string
	// stop fails the test if Run does, end returns its error.
	stop func()
	end  func() error
}

// config retries soon. The timeouts stay the real ones: on a busy machine
// shorter ones would make failures that no test asked for.
func config() Config {
	return Config{
		Consumer: consumer.Config{Retry: consumer.RetryPolicy{BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond}},
		Relay:    outbox.RelayConfig{BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	}
}

// start runs an order service. It is stopped at the end of the test, or earlier
// by stop.
func (s *system) start(cfg Config) *process {
	s.tb.Helper()
	p := s.launch(cfg)
	bustest.Eventually(s.tb, soon, func() error { return p.Health() })
	return p
}

// launch runs an order service and does not wait until it is healthy.
func (s *system) launch(cfg Config) *process {
	s.tb.Helper()
	b := bustest.Connect(s.tb, bus.Config{InProcess: s.server, Names: s.bus.Names()})
	cfg.Logger = zerolog.New(zerolog.NewTestWriter(s.tb)).Level(zerolog.WarnLevel) // shown when the test fails
	svc, err := New(b, s.open(), cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	web := httptest.NewServer(svc.Handler())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	p := &process{Service: svc, s: s, url: web.URL}
	p.end = sync.OnceValue(func() error {
		web.Close()
		cancel()
		return <-done
	})
	p.stop = sync.OnceFunc(func() {
		if err := p.end(); err != nil {
			s.tb.Errorf("Run: %v", err)
		}
	})
	s.tb.Cleanup(func() { p.stop() })
	return p
}

// placeAll places orders with the keys 0 to n-1 at the same time, each at one
// of the processes, and returns their ids.
func placeAll(tb testing.TB, n int, ps ...*process) []string {
	tb.Helper()
	var placing sync.WaitGroup
	ids, errs := make([]string, n), make([]error, n)
	for i := range n {
		placing.Go(func() { ids[i], errs[i] = ps[i%len(ps)].place(fmt.Sprint(i)) })
	}
	placing.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return ids
}

// orders returns the orders that there are, newest first.
func (p *process) orders() []view {
	p.s.tb.Helper()
	return parse[page](p.s.tb, p.call(http.MethodGet, "/orders", nil, "").body).Orders
}

func (p *process) record(id string) (Order, error) { return p.s.record(id) }

// record returns the row of an order, the zero order if there is none.
func (s *system) record(id string) (Order, error) {
	return table{s.db.Dialect}.get(s.tb.Context(), s.db.DB, id)
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
func (s *system) publish(drafts ...event.Draft) {
	s.tb.Helper()
	for _, d := range drafts {
		if err := s.send(d); err != nil {
			s.tb.Fatal(err)
		}
	}
}

func (s *system) send(d event.Draft) error {
	e, err := s.bus.Seal(d)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(soon); ; {
		_, err = s.bus.Publish(s.tb.Context(), e)
		if !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline) { // again is safe: it is the same event
			return err
		}
	}
}

// settled waits until all that was committed is published and the order
// service's consumer has nothing left to do.
func (s *system) settled() {
	s.tb.Helper()
	before := uint64(0)
	bustest.Eventually(s.tb, soon, func() error {
		open := 0
		err := s.db.DB.QueryRowContext(s.tb.Context(), `SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PROCESSING')`).Scan(&open)
		if err != nil || open > 0 {
			return fmt.Errorf("%d rows are not published (%w)", open, err)
		}
		stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().EventsStream())
		if err != nil {
			return err
		}
		c, err := stream.Consumer(s.tb.Context(), string(Name))
		if err != nil {
			return err
		}
		if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Errorf("%d not delivered, %d not acknowledged", info.NumPending, info.NumAckPending)
		}
		// While the stream grows, what is handed from outbox to stream may be missed in both.
		last := stream.CachedInfo().State.LastSeq
		if last != before {
			before = last
			return errors.New("the stream grows")
		}
		return nil
	})
}

// stored returns the ids of the stored events of a type, by order.
func (s *system) stored(t event.Type) map[string][]string {
	s.tb.Helper()
	ids := map[string][]string{}
	for _, e := range s.events(t) {
		id := string(event.PartitionKey(e))
		ids[id] = append(ids[id], e.ID())
	}
	return ids
}

// events returns the stored events of a type, oldest first.
func (s *system) events(t event.Type) (all []event.Event) {
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
func (s *system) emitted(t event.Type, id string) []string {
	s.tb.Helper()
	return s.stored(t)[id]
}

// one fails the test unless exactly one event of the type is stored when all is
// settled.
func (s *system) one(t event.Type, id string) {
	s.tb.Helper()
	s.settled()
	bustest.Eventually(s.tb, soon, func() error {
		ids := s.emitted(t, id)
		switch {
		case len(ids) == 0:
			return fmt.Errorf("no %s about %s", t, id)
		case len(ids) > 1:
			s.tb.Errorf("%d %s about %s, want 1: %v", len(ids), t, id, ids)
		}
		return nil
	})
}

func (s *system) none(t event.Type, id string) {
	s.tb.Helper()
	s.settled()
	if ids := s.emitted(t, id); len(ids) != 0 {
		s.tb.Errorf("%s about %s was emitted: %v", t, id, ids)
	}
}

// What the other services say of an order of two widgets.

func items() []events.Item { return []events.Item{{SKU: "widget", Quantity: 2}} }

func captured(id string) event.Draft {
	return events.PaymentCaptured.New(event.Key(id), events.Captured{
		OrderID: id, ChargeID: "ch-" + id, Amount: events.Money{Amount: 5000, Currency: "EUR"}, Items: items(),
	})
}

func reserved(id string) event.Draft {
	return events.InventoryReserved.New(event.Key(id), events.Reserved{OrderID: id, Items: items()})
}

func declined(id string) event.Draft {
	return events.PaymentDeclined.New(event.Key(id), events.Declined{OrderID: id, Reason: "no funds"})
}

func refunded(id string) event.Draft {
	return events.PaymentRefunded.New(event.Key(id), events.Refunded{OrderID: id, Amount: events.Money{Amount: 5000, Currency: "EUR"}})
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
