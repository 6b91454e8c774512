package order

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
)

func TestHappyPath(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), nil)
	id := p.order("k")
	s.publish(captured(id))
	p.becomes(id, Paid)
	s.publish(reserved(id))
	p.becomes(id, Confirmed)
	s.settled()
	s.one("order.confirmed.v1", id)
	s.none("order.cancelled.v1", id)
}

func TestDeclined(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), nil)
	id := p.order("k")
	s.publish(declined(id))
	p.becomes(id, Cancelled)
	s.settled()
	s.one("order.cancelled.v1", id)
	if o, err := p.record(id); err != nil || o.Reason != "payment declined: no funds" {
		t.Errorf("reason is %q (%v)", o.Reason, err)
	}
}

func TestB49_cancelled_order_stays_cancelled(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), nil)
	id := p.order("k")
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
}

func TestB84_one_end_for_many_triggers(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	ps := []*process{s.start(config(), nil), s.start(config(), nil)}
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
}

func TestB86_second_start_after_success_has_no_effect(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), nil)
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
}

func TestB87_rerun_after_write_emits_what_was_decided(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), func(st store) store {
		return &faultyStore{store: st, after: times(2, func(o Order) bool { return o.Status == Confirmed || o.Status == Cancelled })}
	})
	good, bad := p.order("good"), p.order("bad")
	s.publish(captured(good), reserved(good), refunded(bad))
	for id, want := range map[string]bus.Type{good: "order.confirmed.v1", bad: "order.cancelled.v1"} {
		bustest.Eventually(t, soon, func() bool { return len(s.emitted(want, id)) > 0 })
		s.settled()
		s.one(want, id)
	}
	if st := p.Stats(); st.Retried != 2 {
		t.Errorf("stats %+v, want 2 retried", st)
	}
}

// The write is lost: nothing was decided yet, and the rerun decides.
func TestB87_rerun_without_write_decides(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), func(st store) store {
		return &faultyStore{store: st, before: times(2, func(o Order) bool { return o.Status == Cancelled })}
	})
	id := p.order("k")
	s.publish(refunded(id))
	p.becomes(id, Cancelled)
	s.settled()
	s.one("order.cancelled.v1", id)
}

func TestB89_captured_for_unknown_order_is_parked(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	cfg := config()
	cfg.Consumer.Retry.MaxAttempts = 2
	p := s.start(cfg, nil)
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
}

func TestB89_late_start_completes(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), nil)
	id := idOf("late")
	s.publish(captured(id), reserved(id))
	bustest.Eventually(t, soon, func() bool { return p.Stats().Retried >= 2 }) // two seconds
	p.order("late")
	p.becomes(id, Confirmed)
	s.settled()
	s.one("order.confirmed.v1", id)
	if st := p.Stats(); st.Parked != 0 {
		t.Errorf("stats %+v, want none parked", st)
	}
}

func TestB93_two_events_at_once(t *testing.T) {
	t.Parallel()
	const n = 200
	s := newSystem(t, bustest.Server(t))
	ps := []*process{s.start(config(), nil), s.start(config(), nil)}
	var placing sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		placing.Go(func() {
			a, err := ps[i%2].do(http.MethodPost, "/orders", key(fmt.Sprint(i)), twoWidgets)
			if err == nil && a.status != http.StatusAccepted {
				err = fmt.Errorf("%d %s", a.status, a.body)
			}
			errs[i] = err
		})
	}
	placing.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatal(i, err)
		}
	}

	both := make([]error, 2*n)
	var publishing sync.WaitGroup
	for i := range n {
		id := idOf(fmt.Sprint(i))
		publishing.Go(func() { both[2*i] = s.send(captured(id)) })
		publishing.Go(func() { both[2*i+1] = s.send(reserved(id)) })
	}
	publishing.Wait()
	for i, err := range both {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	for i := range n {
		ps[0].becomes(idOf(fmt.Sprint(i)), Confirmed)
	}
	s.settled()
	for _, p := range ps {
		if st := p.Stats(); st.Retried != 0 || st.Parked != 0 {
			t.Errorf("stats %+v, want no failures", st)
		}
	}
	confirmed := s.stored("order.confirmed.v1")
	for i := range n {
		if ids := confirmed[idOf(fmt.Sprint(i))]; len(ids) != 1 {
			t.Errorf("order %d: %d order.confirmed.v1, want 1", i, len(ids))
		}
	}
}
