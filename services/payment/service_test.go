package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/services/payment/gateway"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// memory is a store in memory, whose Nth Put can fail before or after it took effect.
type memory struct {
	mu      sync.Mutex
	records map[event.Key][]byte
	revs    map[event.Key]uint64

	failPuts   int
	afterwards bool
}

var errInjected = errors.New("injected")

func newMemory() *memory {
	return &memory{records: map[event.Key][]byte{}, revs: map[event.Key]uint64{}}
}

func (m *memory) Get(_ context.Context, key event.Key) (r Record, revision uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if data := m.records[key]; data != nil {
		err = json.Unmarshal(data, &r)
	}
	return r, m.revs[key], err
}

func (m *memory) Put(_ context.Context, key event.Key, r Record, revision uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := m.failPuts > 0
	if fail {
		m.failPuts--
	}
	if fail && !m.afterwards {
		return 0, errInjected
	}
	if m.revs[key] != revision {
		return 0, bus.ErrConflict
	}
	data, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	m.records[key] = data
	m.revs[key]++
	if fail {
		return 0, errInjected
	}
	return m.revs[key], nil
}

// scene is a service with a real gateway and a store in memory.
type scene struct {
	t       *testing.T
	s       *Service
	store   *memory
	gateway *gateway.Gateway
	url     string
}

func openGateway(t *testing.T) (*gateway.Gateway, string) {
	t.Helper()
	g, err := gateway.New(gateway.Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		srv.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, srv.URL
}

func newScene(t *testing.T) scene {
	t.Helper()
	g, url := openGateway(t)
	s, err := New(bustest.NewBus(t), Config{GatewayURL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.gateway.http.CloseIdleConnections)
	sc := scene{t: t, s: s, store: newMemory(), gateway: g, url: url}
	s.use(sc.store)
	return sc
}

// handle runs the handler until it succeeds, as redeliveries would, and tells
// what it emitted.
func (sc scene) handle(e event.Event) string {
	sc.t.Helper()
	for range 5 {
		effects, err := bustest.Handle(sc.t.Context(), sc.s.Registry(), Name, e)
		if errors.Is(err, errInjected) {
			continue
		}
		if err != nil {
			sc.t.Fatal(err)
		}
		return tell(effects.Events)
	}
	sc.t.Fatal("does not converge")
	return ""
}

func tell(out []event.Event) string {
	told := make([]string, 0, len(out))
	for _, e := range out {
		told = append(told, e.Type()+" "+e.ID()+" "+string(e.Data()))
	}
	return strings.Join(told, "\n")
}

type line struct {
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"`
	Refunded int64  `json:"refunded"`
}

// books returns the gateway's charges.
func books(t *testing.T, g *gateway.Gateway) []line {
	t.Helper()
	w := httptest.NewRecorder()
	g.Admin().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/books", http.NoBody))
	var got struct{ Charges []line }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got.Charges
}

func (sc scene) expectBooks(want ...line) {
	sc.t.Helper()
	if got := books(sc.t, sc.gateway); fmt.Sprint(got) != fmt.Sprint(want) {
		sc.t.Fatalf("books %v, want %v", got, want)
	}
}

func placed(t *testing.T, id, customer, eventID string) event.Event {
	t.Helper()
	d := events.OrderPlaced.New(event.Key(id), order(id, customer))
	d.ID = eventID
	return bustest.Event(t, d)
}

func rejected(t *testing.T, id, eventID string) event.Event {
	t.Helper()
	d := events.InventoryRejected.New(event.Key(id), events.Rejected{OrderID: id, Reason: "out of stock"})
	d.ID = eventID
	return bustest.Event(t, d)
}

func released(t *testing.T, id, eventID string) event.Event {
	t.Helper()
	d := events.InventoryReleased.New(event.Key(id), events.Released{OrderID: id})
	d.ID = eventID
	return bustest.Event(t, d)
}

func expect(t *testing.T, got, kind string) {
	t.Helper()
	if kind == "" && got != "" || !strings.HasPrefix(got, kind) || strings.Contains(got, "\n") {
		t.Fatalf("emitted %q, want one %q", got, kind)
	}
}

func TestPathsByHand(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	expect(t, sc.handle(placed(t, "o1", "anna", "e1")), "payment.captured.v1 ")
	expect(t, sc.handle(placed(t, "o2", "decline-anna", "e2")), "payment.declined.v1 ")
	expect(t, sc.handle(released(t, "o2", "e3")), "")
	expect(t, sc.handle(rejected(t, "o1", "e4")), "payment.refunded.v1 ")
	expect(t, sc.handle(released(t, "o1", "e5")), "")
	sc.expectBooks(line{"o1", 2500, 2500})
}

func TestCancelledBeforeTheChargeIsNeverCharged(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	got := sc.handle(released(t, "o1", "e1"))
	expect(t, got, "payment.refunded.v1 ")
	if !strings.Contains(got, `"amount":{"amount":0,"currency":"XXX"}`) {
		t.Fatal(got)
	}
	expect(t, sc.handle(placed(t, "o1", "anna", "e2")), "")
	sc.expectBooks()
}

func TestSecondTriggerWithAnotherIDRefundsOnce(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	for round := range 10 {
		id := fmt.Sprint("o", round)
		expect(t, sc.handle(placed(t, id, "anna", id+"-p")), "payment.captured.v1 ")
		var wg sync.WaitGroup
		out := make([]string, 4)
		for i := range out {
			wg.Go(func() {
				trigger := rejected
				if i%2 == 1 {
					trigger = released
				}
				out[i] = sc.handle(trigger(t, id, fmt.Sprint(id, "-", i)))
			})
		}
		wg.Wait()
		expect(t, strings.Join(out, ""), "payment.refunded.v1 ")
		if n := strings.Count(strings.Join(out, ""), "payment.refunded.v1"); n != 1 {
			t.Fatalf("%d refunds: %q", n, out)
		}
	}
}

func TestSecondOrderAfterSuccessDoesNothing(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	expect(t, sc.handle(placed(t, "o1", "anna", "e1")), "payment.captured.v1 ")
	expect(t, sc.handle(placed(t, "o1", "anna", "e2")), "")
	sc.expectBooks(line{"o1", 2500, 0})
}

// Whatever write fails, before or after it took effect, the rerun emits the
// same event, and money moves once.
func TestRerunEmitsTheSame(t *testing.T) {
	t.Parallel()
	for _, afterwards := range []bool{false, true} {
		sc := newScene(t)
		sc.store.afterwards = afterwards
		for _, e := range []event.Event{placed(t, "o1", "anna", "e1"), rejected(t, "o1", "e2")} {
			sc.store.failPuts = 2
			first, again := sc.handle(e), sc.handle(e)
			if first == "" || first != again {
				t.Fatalf("afterwards %v: %q, then %q", afterwards, first, again)
			}
		}
		sc.expectBooks(line{"o1", 2500, 2500})
	}
}

// The process dies between the charge and its record, and the order is given
// up before the event comes again.
func TestOrderGivenUpWhileTheChargesOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	sc.store.failPuts = 1
	if _, err := bustest.Handle(t.Context(), sc.s.Registry(), Name, placed(t, "o1", "anna", "e1")); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	got := sc.handle(released(t, "o1", "e2"))
	expect(t, got, "payment.refunded.v1 ")
	if !strings.Contains(got, `"amount":2500`) {
		t.Fatal(got)
	}
	expect(t, sc.handle(placed(t, "o1", "anna", "e1")), "")
	sc.expectBooks(line{"o1", 2500, 2500})
}

// The void is made, its record is not, and the charge comes in between.
func TestChargeAfterAVoidThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	sc.store.failPuts = 1
	if _, err := bustest.Handle(t.Context(), sc.s.Registry(), Name, released(t, "o1", "e2")); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	expect(t, sc.handle(placed(t, "o1", "anna", "e1")), "")
	expect(t, sc.handle(released(t, "o1", "e2")), "payment.refunded.v1 ")
	sc.expectBooks()
}

// Charge and refund at the same time: either order is left without money, and
// told to be refunded once.
func TestChargeRacingItsRefund(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	for round := range 20 {
		id := fmt.Sprint("o", round)
		var wg sync.WaitGroup
		var refunds string
		wg.Go(func() { sc.handle(placed(t, id, "anna", id+"-p")) })
		wg.Go(func() { refunds = sc.handle(released(t, id, id+"-r")) })
		wg.Wait()
		expect(t, refunds, "payment.refunded.v1 ")
	}
	for _, l := range books(t, sc.gateway) {
		if l.Refunded != l.Amount {
			t.Errorf("kept: %+v", l)
		}
	}
}

func TestInvalidOrdersAreNotCharged(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	bad := order("o1", "anna")
	bad.Total.Currency = "euro"
	_, err := bustest.Handle(t.Context(), sc.s.Registry(), Name, bustest.Event(t, events.OrderPlaced.New("o1", bad)))
	if !errors.Is(err, events.ErrInvalid) || !sameOutcome(err, consumer.Permanent(err)) {
		t.Fatal(err)
	}
	_, err = bustest.Handle(t.Context(), sc.s.Registry(), Name, bustest.Event(t, events.InventoryRejected.New("o1", events.Rejected{})))
	if !errors.Is(err, events.ErrInvalid) || !sameOutcome(err, consumer.Permanent(err)) {
		t.Fatal(err)
	}
	sc.expectBooks()
}

func TestPoisonPanicsUntilItIsSwitchedOff(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	e := placed(t, "o1", "poison-anna", "e1")
	if _, err := bustest.Handle(t.Context(), sc.s.Registry(), Name, e); !errors.Is(err, consumer.ErrPanic) {
		t.Fatal(err)
	}
	sc.expectBooks()
	put := func(body string) int {
		w := httptest.NewRecorder()
		sc.s.Admin().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/faults", strings.NewReader(body)))
		return w.Code
	}
	for body, want := range map[string]int{"{": 400, "{}": 400, `{"poison":1}`: 400} {
		if got := put(body); got != want {
			t.Errorf("%s: %d", body, got)
		}
	}
	if got := put(`{"poison":false}`); got != 200 {
		t.Fatal(got)
	}
	expect(t, sc.handle(e), "payment.captured.v1 ")
}

func TestNotReadyBeforeRun(t *testing.T) {
	t.Parallel()
	s, err := New(bustest.NewBus(t), Config{GatewayURL: "http://gw", NoPoison: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Health(); !errors.Is(err, ErrNotReady) {
		t.Error(err)
	}
	if _, err := bustest.Handle(t.Context(), s.Registry(), Name, placed(t, "o1", "poison-anna", "e1")); !errors.Is(err, ErrNotReady) {
		t.Error(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Run without the bucket: %v", err)
	}
}
