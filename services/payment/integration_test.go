package payment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/services/payment/gateway"
	"github.com/farandole/farandole/topology"
)

const within = 60 * time.Second

// system is a running service on a real bus, with a real gateway.
type system struct {
	t       *testing.T
	bus     *bus.Bus
	gateway *gateway.Gateway
	service *Service
}

// run starts replicas of the service.
func run(t *testing.T, replicas int, cfg Config) system {
	t.Helper()
	b := bustest.NewBus(t)
	bustest.Provision(t, b, topology.Config{Buckets: []string{Bucket}})
	sys := system{t: t, bus: b}
	sys.gateway, cfg.GatewayURL = openGateway(t)
	cfg.Consumer.Retry = consumer.RetryPolicy{MaxAttempts: 5, BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond}
	cfg.Breaker.OpenFor = cmp.Or(cfg.Breaker.OpenFor, 50*time.Millisecond)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	for range replicas {
		s, err := New(b, cfg)
		if err != nil {
			t.Fatal(err)
		}
		sys.service = s
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		bustest.Eventually(t, within, s.Health)
	}
	return sys
}

func (sys system) publish(e event.Event) {
	sys.t.Helper()
	if _, err := sys.bus.Publish(sys.t.Context(), e); err != nil {
		sys.t.Fatal(err)
	}
}

// record waits for an order's record to have the status.
func (sys system) record(id string, want Status) Record {
	sys.t.Helper()
	bucket, err := bus.OpenBucket[Record](sys.t.Context(), sys.bus, Bucket)
	if err != nil {
		sys.t.Fatal(err)
	}
	var r Record
	bustest.Eventually(sys.t, within, func() error {
		if r, _, err = bucket.Get(sys.t.Context(), event.Key(id)); err != nil || r.Status != want {
			return fmt.Errorf("%w: %+v, want %s", err, r, want)
		}
		return nil
	})
	return r
}

// handled waits until n events are handled and none is under way.
func (sys system) handled(n uint64) {
	sys.t.Helper()
	bustest.Eventually(sys.t, within, func() error {
		if st := sys.service.Stats(); st.Handled != n || st.InFlight != 0 {
			return fmt.Errorf("%+v, want %d handled", st, n)
		}
		return nil
	})
}

// sent counts the stored events of a type about an order.
func (sys system) sent(t event.Type, id string) int {
	sys.t.Helper()
	stream, err := sys.bus.JetStream().Stream(sys.t.Context(), sys.bus.Names().EventsStream())
	if err != nil {
		sys.t.Fatal(err)
	}
	subject := sys.bus.Names().Stored(sys.bus.Names().EventSubject(t, event.Key(id)), event.DefaultPartitions)
	info, err := stream.Info(sys.t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		sys.t.Fatal(err)
	}
	return int(info.State.Subjects[subject])
}

// The gateway takes longer than the client waits. The retry has the same key.
func TestSlowGatewayChargesOnce(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{Timeout: 100 * time.Millisecond})
	if err := sys.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeSlow, DelayMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	sys.publish(placed(t, "o1", "anna", "e1"))
	sys.record("o1", Captured)
	sys.handled(1)
	if st := sys.service.Stats(); st.Retried == 0 {
		t.Errorf("not retried: %+v", st)
	}
	if got := books(t, sys.gateway); len(got) != 1 || sys.sent("payment.captured.v1", "o1") != 1 {
		t.Fatalf("%+v", got)
	}
}

func TestTwoRejectionsRefundOnce(t *testing.T) {
	t.Parallel()
	sys := run(t, 2, Config{})
	const orders = 20
	for i := range orders {
		sys.publish(placed(t, fmt.Sprint("o", i), "anna", fmt.Sprint("p", i)))
	}
	for i := range orders {
		sys.record(fmt.Sprint("o", i), Captured)
	}
	for i := range orders { // neighbours in the stream: the replicas get one each
		id := fmt.Sprint("o", i)
		sys.publish(rejected(t, id, "a"+id))
		sys.publish(rejected(t, id, "b"+id))
		sys.publish(released(t, id, "c"+id))
	}
	for i := range orders {
		id := fmt.Sprint("o", i)
		sys.record(id, Refunded)
		bustest.Eventually(t, within, func() bool { return sys.sent("payment.refunded.v1", id) == 1 })
	}
	for _, l := range books(t, sys.gateway) {
		if l.Refunded != l.Amount {
			t.Errorf("%+v", l)
		}
	}
}

func TestSecondOrderHasNoEffect(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{})
	sys.publish(placed(t, "o1", "anna", "e1"))
	first := sys.record("o1", Captured)
	sys.publish(placed(t, "o1", "anna", "e2"))
	sys.handled(2)
	again := sys.record("o1", Captured)
	if again.ChargeID != first.ChargeID || len(again.Emitted) != 1 || sys.sent("payment.captured.v1", "o1") != 1 || sys.sent("payment.refunded.v1", "o1") != 0 {
		t.Fatalf("%+v", again)
	}
	if got := books(t, sys.gateway); fmt.Sprint(got) != fmt.Sprint([]line{{"o1", 2500, 0}}) {
		t.Fatalf("%+v", got)
	}
}

// The state is written and the process dies before the event is sent: here
// another consumer instance with an empty memory gets the event again.
func TestRefundIsSentAfterACrash(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	bustest.Provision(t, b, topology.Config{Buckets: []string{Bucket}})
	g, url := openGateway(t)
	dying, err := New(b, Config{GatewayURL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dying.gateway.http.CloseIdleConnections)
	bucket, err := bus.OpenBucket[Record](t.Context(), b, Bucket)
	if err != nil {
		t.Fatal(err)
	}
	dying.use(bucket)
	order, trigger := placed(t, "o1", "anna", "e1"), rejected(t, "o1", "e2")
	for _, e := range []event.Event{order, trigger} { // handled, and nothing sent
		if _, err := bustest.Handle(t.Context(), dying.Registry(), Name, e); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	s, err := New(b, Config{GatewayURL: url})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	sys := system{t: t, bus: b, gateway: g, service: s}
	sys.publish(order)
	sys.publish(trigger)
	sys.handled(2)
	if sys.sent("payment.captured.v1", "o1") != 1 || sys.sent("payment.refunded.v1", "o1") != 1 {
		t.Error("not sent")
	}
	if got := books(t, g); fmt.Sprint(got) != fmt.Sprint([]line{{"o1", 2500, 2500}}) {
		t.Errorf("%+v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// An outage of the gateway that outlasts no attempt, and answers that get lost.
func TestFlakyGatewayChargesEachOrderOnce(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{})
	if err := sys.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeFlaky, Rate: 0.2, Seed: 5}); err != nil {
		t.Fatal(err)
	}
	const orders = 40
	for i := range orders {
		sys.publish(placed(t, fmt.Sprint("o", i), "anna", fmt.Sprint("e", i)))
	}
	sys.handled(orders)
	seen := map[string]bool{}
	for _, l := range books(t, sys.gateway) {
		if seen[l.OrderID] {
			t.Errorf("%s charged twice", l.OrderID)
		}
		seen[l.OrderID] = true
	}
	if len(seen) != orders {
		t.Errorf("%d charged", len(seen))
	}
}

// While the gateway is down it gets the calls that find it out and one probe an open
// period. No event is parked, and the failures after the opening are no attempts.
func TestGatewayThatIsDownIsLeftAlone(t *testing.T) {
	t.Parallel()
	const orders, failures, concurrency, periods = 100, 3, 4, 10
	sys := run(t, 1, Config{
		Breaker:  resilience.BreakerConfig{Failures: failures, OpenFor: 100 * time.Millisecond, Probes: 1},
		Consumer: consumer.Config{Concurrency: concurrency},
	})
	if err := sys.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeDown}); err != nil {
		t.Fatal(err)
	}
	for i := range orders {
		sys.publish(placed(t, fmt.Sprint("o", i), "anna", fmt.Sprint("e", i)))
	}
	var down resilience.BreakerStats
	bustest.Eventually(t, within, func() error { // longer than the attempts of an event would last
		if down = sys.service.breaker.Stats(); down.Opened < periods || down.Failures < failures+periods-1 {
			return fmt.Errorf("%+v", down)
		}
		return nil
	})
	if st := sys.service.Stats(); st.Parked != 0 || st.Retried > failures+concurrency || down.Failures > failures+down.Opened {
		t.Errorf("events have paid for it: %+v; %+v", st, down)
	}
	if err := sys.gateway.SetFaults(gateway.Faults{}); err != nil {
		t.Fatal(err)
	}
	sys.handled(orders)
	if got := len(books(t, sys.gateway)); got != orders {
		t.Errorf("%d charged", got)
	}
}

func TestAlwaysFailingChargeIsTriedAsOftenAsConfigured(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{Breaker: resilience.BreakerConfig{Failures: 100}})
	if err := sys.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeDown}); err != nil {
		t.Fatal(err)
	}
	sys.publish(placed(t, "o1", "anna", "e1"))
	bustest.Eventually(t, within, func() bool { return sys.service.Stats().Parked == 1 })
	if calls := sys.service.breaker.Stats().Failures; calls != 5 {
		t.Errorf("%d calls of 5 attempts", calls)
	}
}

func TestPoisonIsReplayedFromTheDeadLetters(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{})
	e := placed(t, "o1", "poison-anna", "e1")
	sys.publish(e)
	letters, err := letters.Open(sys.bus)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, within, func() error {
		page, err := letters.List(t.Context(), dlq.Filter{Consumer: Name}, dlq.PageOptions{})
		if err == nil && len(page.Entries) != 1 {
			err = errors.New("not parked")
		}
		return err
	})
	sys.service.SetPoison(false)
	summary, err := letters.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, nil)
	if err != nil || summary.Counts[dlq.Replayed] != 1 {
		t.Fatalf("%+v, %v", summary, err)
	}
	sys.record("o1", Captured)
	sys.handled(1)
	if sys.sent(events.PaymentCaptured.Type(), "o1") != 1 {
		t.Error("not sent")
	}
}
