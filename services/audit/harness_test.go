package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/services/audit"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/order"
	"github.com/farandole/farandole/services/payment"
	"github.com/farandole/farandole/services/payment/gateway"
)

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 2 * time.Minute

func openDatabase(t *testing.T) *database.Database {
	t.Helper()
	db, err := database.Open(filepath.Join(t.TempDir(), "order.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func openGateway(t *testing.T) *gateway.Server {
	t.Helper()
	g, err := gateway.Start(gateway.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

type service interface {
	Run(ctx context.Context) error
	Health() error
}

// serve runs a service, with a connection of its own, until stop is called.
func serve[S service](t *testing.T, b *bus.Bus, open func(*bus.Bus) (S, error)) (s S, stop func()) {
	t.Helper()
	s, err := open(bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: b.Names()}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	bustest.Eventually(t, soon, s.Health)
	return s, stop
}

// shop is an order service that takes orders and handles no event: it is paused. Its
// bus is not that of the system.
type shop struct {
	t    *testing.T
	bus  *bus.Bus
	http http.Handler
	told int // events that its customers' requests lead to
	stop func()
}

func openShop(t *testing.T, db *database.Database) *shop {
	t.Helper()
	b := bustest.NewBus(t)
	now := time.Now()
	_, err := pauses.New(b).Update(t.Context(), order.Name, func(d *pauses.Document) bool {
		d.Pause = &pauses.Pause{Until: now.Add(time.Hour), At: now, By: "test"}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	s, stop := serve(t, b, func(b *bus.Bus) (*order.Service, error) { return order.New(b, db, order.Config{}) })
	bustest.Eventually(t, soon, func() error {
		st, err := consumer.Look(t.Context(), b, order.Name)
		if err == nil && st.Durables[0].PausedUntil.IsZero() {
			err = fmt.Errorf("not paused: %+v", st)
		}
		return err
	})
	return &shop{t: t, bus: b, http: s.Handler(), stop: stop}
}

// place places an order, cancels it if its customer wants that, and returns its id.
func (s *shop) place(key, customer, sku string, cancel bool) (id string) {
	s.t.Helper()
	answer := s.post("/orders", key, fmt.Sprintf(`{"customer_id":%q,"currency":"EUR","items":[{"sku":%q,"quantity":2}]}`, customer, sku))
	if s.told++; cancel {
		s.post("/orders/"+answer.ID+"/cancel", key, "")
		s.told++
	}
	return answer.ID
}

type placed struct {
	ID string `json:"order_id"`
}

func (s *shop) post(path, key, body string) (answer placed) {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.http.ServeHTTP(w, r)
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusAccepted {
		s.t.Fatalf("POST %s: %d %s", path, w.Code, w.Body)
	}
	return answer
}

// close stops the service when it has published all of its orders' events, and returns
// them by order.
func (s *shop) close() (stories map[string]*story) {
	s.t.Helper()
	bustest.Eventually(s.t, soon, func() error {
		stories = map[string]*story{}
		n := 0
		err := follow.Read(s.t.Context(), s.bus, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
			e, problem := m.Event()
			if problem != "" {
				return fmt.Errorf("%s: %s", m.Subject, problem)
			}
			id := string(event.PartitionKey(e))
			if stories[id] == nil {
				stories[id] = &story{t: s.t}
			}
			stories[id].events = append(stories[id].events, e)
			n++
			return nil
		})
		if err == nil && n < s.told {
			err = fmt.Errorf("%d of %d events published", n, s.told)
		}
		return err
	})
	s.stop()
	for id, story := range stories {
		var err error
		if story.placed, err = events.OrderPlaced.Decode(story.events[0]); err != nil {
			s.t.Fatalf("%s: %v", id, err)
		}
	}
	return stories
}

// awaitRest waits until nothing of any service is open.
func awaitRest(t *testing.T, b *bus.Bus) {
	t.Helper()
	bustest.Eventually(t, soon, func() error {
		for _, name := range []event.Consumer{order.Name, inventory.Name, payment.Name} {
			st, err := consumer.Look(t.Context(), b, name)
			if err == nil && (st.Lag > 0 || st.Retries > 0 || st.Deferred > 0) {
				err = fmt.Errorf("%s: %d open, %d retries, %d put off", name, st.Lag, st.Retries, st.Deferred)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// audited waits until the outbox is published, too, and audits the system.
func audited(t *testing.T, b *bus.Bus, db *database.Database, g *gateway.Server) (r audit.Report) {
	t.Helper()
	bustest.Eventually(t, soon, func() (err error) {
		awaitRest(t, b)
		r, err = audit.Run(t.Context(), b, db.DB, g.AdminURL)
		for _, v := range r.Violations {
			if v.Invariant == audit.Outbox {
				return fmt.Errorf("%+v", v)
			}
		}
		return err
	})
	return r
}
