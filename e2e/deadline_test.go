package e2e_test

import (
	"fmt"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
)

// The bank of these customers takes two seconds, which is all the time that
// their orders have: each ends confirmed and paid, or cancelled and refunded.
func TestDeadline_racing_completion(t *testing.T) {
	t.Parallel()
	for _, ledger := range []string{"kv", "partition"} {
		t.Run(ledger, func(t *testing.T) {
			t.Parallel()
			raceDeadlines(t, newSystem(t, "--ledger", ledger, "--deadline", "2s", "--concurrency", "128", "--sync-always=false"), 100)
		})
	}
}

func raceDeadlines(t *testing.T, s *system, orders int) {
	t.Helper()
	s.startReady()
	var ids []string
	for i := range orders {
		ids = append(ids, s.mustPlace(t, fmt.Sprint("order-", i), "slow-ada"))
	}
	ended := map[string]int{}
	for _, id := range ids {
		bustest.Eventually(t, patience, func() error {
			status, err := s.status(t.Context(), id)
			if err == nil && status != confirmed && status != cancelled {
				err = fmt.Errorf("order %s is %s", id, status)
			}
			if err == nil {
				ended[status]++
			}
			return err
		})
	}
	auditOK(t, s.nats, s.orders, s.books, ids)
	due := s.count(t, "order.deadline.v1")
	t.Logf("%d confirmed, %d cancelled, %d deadlines came", ended[confirmed], ended[cancelled], due)
	if ended[cancelled] == 0 || due < ended[cancelled] {
		t.Errorf("%d orders cancelled, %d deadlines came: nothing raced", ended[cancelled], due)
	}
	s.stopCleanly()
}

// Payment does not come up before the deadline: the order is undone without a
// charge, and payment, when it is there, makes none.
func TestDeadlineWithoutPayment(t *testing.T) {
	t.Parallel()
	s := newSplit(t, "--deadline", "1s")
	id := s.mustPlace(t, "k", "ada")
	bustest.Eventually(t, patience, func() error {
		status, err := s.status(t.Context(), id)
		if err == nil && status != "cancelling" {
			err = fmt.Errorf("order is %s", status)
		}
		return err
	})
	p := s.payment("payment")
	s.awaitStatus(t, cancelled, id)
	auditOK(t, s.nats, s.orders, s.books, []string{id})
	p.stopCleanly()
}

// count counts the stored events of a type.
func (s *system) count(t testing.TB, typ event.Type) (n int) {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: s.nats})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = follow.Read(t.Context(), b, follow.Options{Filters: []string{b.Names().TypeFilter(typ)}, FromStart: true, NoFollow: true},
		func(follow.Message) error { n++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}
