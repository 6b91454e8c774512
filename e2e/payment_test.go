package e2e_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// lease is short, for tests that wait for one to end.
const lease = "2s"

// Payment dies after the gateway has charged and before the step is marked
// done: the step runs again, under the same key, and charges nothing.
func TestKill_between_charge_and_done(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	var ids []string
	for i := range 3 {
		s.setGateway(`{"mode":"slow","delay_ms":60000}`) // charges at once, answers late
		p := s.payment("payment", "--lease", lease)
		id := s.mustPlace(t, fmt.Sprint("order-", i), "ada")
		s.awaitCharge(id)
		p.kill()
		s.setGateway(`{}`)
		p = s.payment("payment again", "--lease", lease)
		s.awaitStatus(t, confirmed, id)
		p.stopCleanly()
		ids = append(ids, id)
	}
	auditOK(t, s.nats, s.orders, s.books, ids)
}

// The provider answers later than the client waits: the next try, under the
// same key, finds the charge made.
func TestProvider_slower_than_client_timeout(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	s.payment("payment", "--lease", lease)
	s.setGateway(`{"mode":"slow","delay_ms":30000}`)
	id := s.mustPlace(t, "slow", "ada")
	s.awaitStatus(t, confirmed, id)
	auditOK(t, s.nats, s.orders, s.books, []string{id})
}

// A stalls in the middle of a step for longer than its lease, B takes over and
// fails for a while; then A goes on. A settles nothing: the step is B's.
func TestStalled_worker_wakes_after_takeover(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	s.setGateway(`{"mode":"slow","delay_ms":1000}`)
	a := s.payment("payment A", "--lease", lease)
	id := s.mustPlace(t, "stalled", "ada")
	s.awaitCharge(id) // A waits for the gateway's answer
	a.signal(syscall.SIGSTOP)

	s.setGateway(`{"mode":"down"}`)
	b := s.payment("payment B", "--lease", lease)
	awaitLog(t, b, "handler failed, will retry") // the step is B's, and B fails
	a.signal(syscall.SIGCONT)
	awaitLog(t, a, "lease lost")
	if status, err := s.status(t.Context(), id); err != nil || status == confirmed {
		t.Errorf("order is %s, %v: A has settled the step of B", status, err)
	}

	s.setGateway(`{}`)
	s.awaitStatus(t, confirmed, id)
	auditOK(t, s.nats, s.orders, s.books, []string{id})
	a.stopCleanly()
	b.stopCleanly()
}

// Payment is told to stop with slow steps in flight and many waiting: those in
// flight finish, the others are the new instance's, and no attempt is spent:
// with a single attempt allowed nothing is dead-lettered.
func TestStop_with_orders_in_flight(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	flags := []string{"--max-attempts", "1", "--concurrency", "5"}
	p := s.payment("payment", flags...)
	var ids []string
	for i := range 5 {
		ids = append(ids, s.mustPlace(t, fmt.Sprint("slow-", i), "slow-ada")) // two seconds each
	}
	for _, id := range ids {
		s.awaitCharge(id)
	}
	waiting := len(ids)
	for i := range 50 {
		ids = append(ids, s.mustPlace(t, fmt.Sprint("waiting-", i), "ada"))
	}
	begin := time.Now()
	p.signal(syscall.SIGTERM)
	next := s.payment("payment again", flags...) // at once
	p.endsCleanly()
	if took := time.Since(begin); took > grace {
		t.Errorf("stop took %s, want at most %s", took, grace)
	}
	s.awaitStatus(t, confirmed, ids[waiting:]...)
	s.awaitStatus(t, confirmed, ids[:waiting]...)
	auditOK(t, s.nats, s.orders, s.books, ids)
	next.stopCleanly()
}

// A step that outlasts the grace period is cut off; it is done later, by
// another process, and not dead-lettered.
func TestStep_longer_than_grace(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	flags := []string{"--max-attempts", "1", "--grace", "200ms"}
	p := s.payment("payment", flags...)
	id := s.mustPlace(t, "slow", "slow-ada")
	s.awaitCharge(id)
	if took := p.stopCleanly(); took > 2*time.Second {
		t.Errorf("stop took %s, although the grace period is 200ms", took)
	}
	p = s.payment("payment again", flags...)
	s.awaitStatus(t, confirmed, id)
	auditOK(t, s.nats, s.orders, s.books, []string{id})
	p.stopCleanly()
}
