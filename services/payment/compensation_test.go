package payment

import (
	"fmt"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/letters"
	"github.com/farandole/farandole/services/payment/gateway"
)

// The refund fails, loses an answer or two, and works in the end.
func TestRefund_that_fails_at_first(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{})
	const orders = 5
	for i := range orders {
		sys.publish(placed(t, fmt.Sprint("o", i), "anna", fmt.Sprint("p", i)))
	}
	sys.handled(orders)
	if err := sys.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeFlaky, Rate: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range orders {
		sys.publish(rejected(t, fmt.Sprint("o", i), fmt.Sprint("r", i)))
	}
	sys.handled(2 * orders)
	if st := sys.service.Stats(); st.Retried < 2*orders {
		t.Errorf("not retried: %+v", st)
	}
	for i := range orders {
		id := fmt.Sprint("o", i)
		sys.record(id, Refunded)
		if n := sys.sent("payment.refunded.v1", id); n != 1 {
			t.Errorf("%s: %d refunds told", id, n)
		}
	}
	for _, l := range books(t, sys.gateway) {
		if l.Refunded != l.Amount {
			t.Errorf("%+v", l)
		}
	}
}

// The refund fails for good: it is parked, nobody is told that it was made, and
// a replay makes it once the gateway is back.
func TestRefund_that_fails_for_good(t *testing.T) {
	t.Parallel()
	sys := run(t, 1, Config{})
	sys.publish(placed(t, "o1", "anna", "e1"))
	sys.publish(placed(t, "o2", "anna", "e2"))
	sys.handled(2)
	if err := sys.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeDown}); err != nil {
		t.Fatal(err)
	}
	sys.publish(rejected(t, "o1", "e3"))
	bustest.Eventually(t, within, func() bool { return sys.service.Stats().Parked == 1 })
	sys.record("o1", Captured)
	if n := sys.sent("payment.refunded.v1", "o1"); n != 0 {
		t.Errorf("%d refunds told", n)
	}

	if err := sys.gateway.SetFaults(gateway.Faults{}); err != nil {
		t.Fatal(err)
	}
	sys.publish(rejected(t, "o2", "e4")) // goes on meanwhile
	sys.record("o2", Refunded)
	queue, err := letters.Open(sys.bus)
	if err != nil {
		t.Fatal(err)
	}
	summary, err := queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, nil)
	if err != nil || summary.Counts[dlq.Replayed] != 1 {
		t.Fatalf("%+v, %v", summary, err)
	}
	sys.record("o1", Refunded)
	bustest.Eventually(t, within, func() bool { return sys.sent("payment.refunded.v1", "o1") == 1 })
	charges := books(t, sys.gateway)
	for _, l := range charges {
		if l.Refunded != l.Amount {
			t.Errorf("%+v", l)
		}
	}
	if len(charges) != 2 {
		t.Errorf("charges %+v", charges)
	}
}
