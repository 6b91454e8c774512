package order

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func TestHappyPath(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		s.publish(captured(id))
		p.becomes(id, Paid)
		s.publish(reserved(id))
		p.becomes(id, Confirmed)
		s.settled()
		s.one("order.confirmed.v1", id)
		s.none("order.cancelled.v1", id)
	})
}

func TestDeclined(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		s.publish(declined(id))
		p.becomes(id, Cancelled)
		s.settled()
		s.one("order.cancelled.v1", id)
		if o, err := p.record(id); err != nil || o.Reason != "payment declined: no funds" {
			t.Errorf("reason is %q (%v)", o.Reason, err)
		}
	})
}

func TestCancelled_order_stays_cancelled(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		s.settled()
		s.publish(refunded(id))
		p.becomes(id, Cancelled)
		s.publish(captured(id), reserved(id), declined(id))
		s.settled()
		p.becomes(id, Cancelled)
		s.one("order.cancelled.v1", id)
		s.none("order.confirmed.v1", id)
		if st := p.Stats(); st.Skipped != 3 || st.Retried != 0 || st.Parked != 0 {
			t.Errorf("stats %+v, want 3 skipped", st)
		}
	})
}

func TestOne_end_for_many_triggers(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		ps := []*process{s.start(config()), s.start(config())}
		id := ps[0].order("k")
		var wg sync.WaitGroup
		errs := make([]error, 10)
		for i := range errs {
			wg.Go(func() {
				d := refunded(id)
				if i%2 == 1 {
					d = declined(id)
				}
				errs[i] = s.send(d)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		ps[0].becomes(id, Cancelled)
		s.settled()
		s.one("order.cancelled.v1", id)
	})
}

func TestSecond_start_after_success_has_no_effect(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		s.publish(captured(id), reserved(id))
		p.becomes(id, Confirmed)

		p.order("k") // the customer's retry, late
		s.publish(captured(id), reserved(id))
		s.settled()
		p.becomes(id, Confirmed)
		s.one("order.placed.v1", id)
		s.one("order.confirmed.v1", id)
		s.none("order.cancelled.v1", id)
	})
}

// A step is rolled back after the handler has written: nothing has changed, and
// the rerun decides, and emits once.
func TestRerun_after_a_write_that_was_rolled_back(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Consumer.Retry.MaxAttempts = 100 // what the database refuses is the event's fault
		p := s.start(cfg)
		good, bad := p.order("good"), p.order("bad")
		s.settled()
		heal := s.refuse("events.order.c") // confirmed, cancelled
		s.publish(captured(good), reserved(good), refunded(bad))
		bustest.Eventually(t, soon, func() bool { return p.Stats().Retried >= 4 })
		p.becomes(good, Paid)
		p.becomes(bad, Placed)
		heal()
		for id, want := range map[string]event.Type{good: "order.confirmed.v1", bad: "order.cancelled.v1"} {
			bustest.Eventually(t, soon, func() bool { return len(s.emitted(want, id)) > 0 })
			s.one(want, id)
		}
		if st := p.Stats(); st.Parked > 0 {
			t.Errorf("stats %+v, want nothing parked", st)
		}
	})
}

func TestCaptured_for_unknown_order_is_parked(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Consumer.Retry.MaxAttempts = 2
		p := s.start(cfg)
		id := idOf("never")
		s.publish(captured(id))
		bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 1 })
		page, err := dlq.Open(s.bus, nil).List(t.Context(), dlq.Filter{}, dlq.PageOptions{})
		if err != nil || len(page.Entries) != 1 {
			t.Fatalf("dead letters: %+v, %v", page, err)
		}
		letter := page.Entries[0]
		if want := "payment captured for unknown order " + id; letter.Reason != "exhausted" || !strings.Contains(fmt.Sprintf("%+v", letter), want) {
			t.Errorf("letter %+v, want exhausted: %s", letter, want)
		}
	})
}

func TestLate_start_completes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("late")
		s.settled()
		s.remove(id)
		s.publish(captured(id), reserved(id))
		bustest.Eventually(t, soon, func() bool { return p.Stats().Retried >= 2 }) // a second each
		p.order("late")
		p.becomes(id, Confirmed)
		s.settled()
		s.one("order.confirmed.v1", id)
		if st := p.Stats(); st.Parked != 0 {
			t.Errorf("stats %+v, want none parked", st)
		}
	})
}

func TestTwo_events_at_once(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		const n = 40
		ps := []*process{s.start(config()), s.start(config())}
		ids := placeAll(t, n, ps...)
		both := make([]error, 2*n)
		var publishing sync.WaitGroup
		for i := range n {
			id := ids[i]
			publishing.Go(func() { both[2*i] = s.send(captured(id)) })
			publishing.Go(func() { both[2*i+1] = s.send(reserved(id)) })
		}
		publishing.Wait()
		for i, err := range both {
			if err != nil {
				t.Fatal(i, err)
			}
		}
		for _, id := range ids {
			ps[0].becomes(id, Confirmed)
		}
		s.settled()
		for _, p := range ps {
			if st := p.Stats(); st.Retried != 0 || st.Parked != 0 {
				t.Errorf("stats %+v, want no failures", st)
			}
		}
		confirmed := s.stored("order.confirmed.v1")
		for _, id := range ids {
			if events := confirmed[id]; len(events) != 1 {
				t.Errorf("order %s: %d order.confirmed.v1, want 1", id, len(events))
			}
		}
	})
}
