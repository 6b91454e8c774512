package order

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// timed is config with a deadline that a test can wait for.
func timed() Config {
	cfg := config()
	cfg.Deadline = time.Second
	return cfg
}

// deadlineOf is the event that an order's timer publishes, from a hand that is
// too late.
func deadlineOf(id, instance string) event.Draft {
	return events.OrderDeadline.New(event.Key(id), events.Deadline{OrderID: id, Instance: instance})
}

// timers counts what waits on the orders' timers.
func (s *system) timers() (n uint64) {
	s.tb.Helper()
	stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().TimersStream())
	if err != nil {
		s.tb.Fatal(err)
	}
	info, err := stream.Info(s.tb.Context(), jetstream.WithSubjectFilter(s.bus.Names().Root("timer.order.deadline.>")))
	if err != nil {
		s.tb.Fatal(err)
	}
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(s.tb.Context(), subject)
		if err == nil && m.Header.Get(jetstream.ScheduleHeader) != "" {
			n++
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			s.tb.Fatal(err)
		}
	}
	return n
}

// loseTimers removes all of them, as a purge of their stream does.
func (s *system) loseTimers() {
	s.tb.Helper()
	stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().TimersStream())
	if err == nil {
		err = stream.Purge(s.tb.Context(), jetstream.WithPurgeSubject(s.bus.Names().Root("timer.order.deadline.>")))
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	if n := s.timers(); n != 0 {
		s.tb.Fatalf("%d timers are left", n)
	}
}

func TestDeadlineCancelsAStuckOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(timed())
		unpaid, halfway := p.order("unpaid"), p.order("halfway")
		s.publish(captured(halfway))
		for _, id := range []string{unpaid, halfway} {
			p.becomes(id, Cancelling)
			s.settled()
			s.one("order.deadline.v1", id)
			s.one("order.cancel_requested.v1", id)
			if o, err := p.record(id); err != nil || o.Reason != "deadline" {
				t.Errorf("reason is %q (%v)", o.Reason, err)
			}
		}
		due, asked := s.events("order.deadline.v1"), s.events("order.cancel_requested.v1")
		causes := map[string]string{}
		for _, e := range due {
			causes[string(event.PartitionKey(e))] = e.ID()
		}
		for _, e := range asked {
			c, err := events.OrderCancelRequested.Decode(e)
			if err != nil || c.OrderID != string(event.PartitionKey(e)) || c.Reason != "deadline" {
				t.Errorf("asks to cancel %+v (%v)", c, err)
			}
			if got := event.Extension(e, event.ExtCausation); got != causes[c.OrderID] {
				t.Errorf("the cancelling is caused by %q, want the deadline %q", got, causes[c.OrderID])
			}
		}
		// The customer has the same wish: it is on its way already.
		if a := p.call(http.MethodPost, "/orders/"+unpaid+"/cancel", nil, ""); a.status != http.StatusAccepted {
			t.Errorf("cancel: %d %s", a.status, a.body)
		}
		// What was under way no longer counts, and the refund ends it.
		s.publish(captured(unpaid), reserved(halfway), refunded(unpaid), refunded(halfway))
		for _, id := range []string{unpaid, halfway} {
			p.becomes(id, Cancelled)
			s.settled()
			s.one("order.cancel_requested.v1", id)
			s.one("order.cancelled.v1", id)
			s.none("order.confirmed.v1", id)
			if v := parse[view](t, p.call(http.MethodGet, "/orders/"+id, nil, "").body); v.Reason != "deadline" {
				t.Errorf("reason is %q", v.Reason)
			}
		}
	})
}

func TestEndOfAnOrderEndsItsDeadline(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config()) // 15 minutes
		good, poor, open := p.order("good"), p.order("poor"), p.order("open")
		s.settled()
		if n := s.timers(); n != 3 {
			t.Fatalf("%d timers are set, want 3", n)
		}
		s.publish(captured(good), reserved(good), declined(poor), captured(open))
		p.becomes(good, Confirmed)
		p.becomes(poor, Cancelled)
		s.settled()
		if n := s.timers(); n != 1 {
			t.Errorf("%d timers are left, want that of the open order", n)
		}
		s.none("order.deadline.v1", good)
	})
}

// A timer that was lost, with the event stream say, is found missing in the table.
// Only orders that are open and late are touched, by one of two processes, once.
func TestDeadlineOfALostTimer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		placed, paid, young, ended := p.order("placed"), p.order("paid"), p.order("young"), p.order("ended")
		s.publish(captured(paid), captured(ended), reserved(ended))
		p.becomes(paid, Paid)
		p.becomes(ended, Confirmed)
		s.settled()
		p.stop()
		s.loseTimers()
		for _, id := range []string{placed, paid, ended} {
			s.exec(`UPDATE orders SET created_at = $2 WHERE order_id = $1`, id, table{s.db.Dialect}.time(time.Now().Add(-17*time.Minute)))
		}
		s.start(config())
		p = s.start(config())
		for _, id := range []string{placed, paid} {
			p.becomes(id, Cancelling)
			if o, err := p.record(id); err != nil || o.Reason != byDeadline {
				t.Errorf("reason is %q (%v)", o.Reason, err)
			}
			s.one("order.cancel_requested.v1", id)
		}
		p.becomes(young, Placed)
		p.becomes(ended, Confirmed)
		s.none("order.cancel_requested.v1", young)
		s.none("order.cancel_requested.v1", ended)
	})
}

// TestTimeout_at_the_same_moment: many reasons to undo an order, of which
// one is its deadline, all at the same moment and at two replicas.
func TestTimeout_at_the_same_moment(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		ps := []*process{s.start(timed()), s.start(timed())}
		const orders = 20
		done := make(chan error, orders)
		var ids []string
		for i := range orders {
			id := ps[i%2].order(fmt.Sprint(i))
			ids = append(ids, id)
			go func() {
				o, err := ps[i%2].record(id)
				for range 3 {
					err = errors.Join(err, s.send(deadlineOf(id, o.Instance)))
				}
				_, cancelErr := ps[1-i%2].do(http.MethodPost, "/orders/"+id+"/cancel", nil, "")
				done <- errors.Join(err, cancelErr)
			}()
		}
		for range orders {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			ps[0].becomes(id, Cancelling)
		}
		s.settled()
		asked := s.stored("order.cancel_requested.v1")
		for _, id := range ids {
			if events := asked[id]; len(events) != 1 {
				t.Errorf("order %s: asked to cancel %d times: %v", id, len(events), events)
			}
		}
	})
}

// TestStale_deadline_of_a_reused_id: it changes neither an order that has
// ended, nor a new one that has its id, and makes none.
func TestStale_deadline_of_a_reused_id(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		ended, gone, again := p.order("ended"), p.order("gone"), p.order("again")
		s.publish(captured(ended), reserved(ended))
		p.becomes(ended, Confirmed)
		s.settled()
		var stale []event.Draft
		for _, id := range []string{ended, gone, again} {
			old, err := p.record(id)
			if err != nil {
				t.Fatal(err)
			}
			stale = append(stale, deadlineOf(id, old.Instance))
			if id != ended {
				s.remove(id)
			}
		}
		p.order("again")
		skipped := p.Stats().Skipped
		s.publish(stale...)
		bustest.Eventually(t, soon, func() bool { return p.Stats().Skipped == skipped+3 })
		s.settled()
		p.becomes(ended, Confirmed)
		p.becomes(gone, "")
		p.becomes(again, Placed)
		for _, id := range []string{ended, gone, again} {
			s.none("order.cancel_requested.v1", id)
		}
		if ids := s.emitted("order.placed.v1", again); len(ids) != 2 || ids[0] == ids[1] {
			t.Errorf("the new instance was announced as %v, want a second identity", ids)
		}
		if n := s.timers(); n != 2 {
			t.Errorf("%d timers wait, want those of the new instance and the order that is gone", n)
		}
		if st := p.Stats(); st.Parked != 0 || st.Retried != 0 {
			t.Errorf("stats %+v, want a stale deadline neither parked nor retried", st)
		}
	})
}

// TestSecond_start_does_not_move_the_deadline: nor does somebody else's.
func TestSecond_start_does_not_move_the_deadline(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		s.settled()
		subject := s.bus.Names().TimerSubject(Name, "deadline", event.Key(id))
		stream, err := s.bus.JetStream().Stream(t.Context(), s.bus.Names().TimersStream())
		if err != nil {
			t.Fatal(err)
		}
		before, err := stream.GetLastMsgForSubject(t.Context(), subject)
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{source, "/mallory"} {
			e, err := events.OrderPlaced.New(event.Key(id), events.Placed{OrderID: id}).Seal(event.Identity{ID: "second", Source: from})
			if err == nil {
				_, err = s.bus.Publish(t.Context(), e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		bustest.Eventually(t, soon, func() bool { return p.Stats().Skipped == 2 })
		if after, err := stream.GetLastMsgForSubject(t.Context(), subject); err != nil || after.Sequence != before.Sequence {
			t.Errorf("the timer was set again (%v)", err)
		}
	})
}

// The step of a deadline is rolled back after the handler has written, and done
// once when it can be.
func TestDeadline_reruns_after_its_write(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := timed()
		cfg.Consumer.Retry.MaxAttempts = 100 // what the database refuses is the event's fault
		p := s.start(cfg)
		heal := s.refuse("cancel_requested")
		id := p.order("k")
		bustest.Eventually(t, soon, func() bool { return p.Stats().Retried > 0 })
		p.becomes(id, Placed)
		heal()
		p.becomes(id, Cancelling)
		s.one("order.cancel_requested.v1", id)
		if st := p.Stats(); st.Parked > 0 {
			t.Errorf("stats %+v, want nothing parked", st)
		}
	})
}

func TestDeadlineIsValidated(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t), filepath.Join(t.TempDir(), "order.db"))
	for _, d := range []time.Duration{-1, time.Second - 1, consumer.MaxTimer + 1} {
		if _, err := New(s.bus, s.db, Config{Deadline: d}); !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), "Deadline") {
			t.Errorf("Deadline %v: %v, want ErrConfig", d, err)
		}
	}
}
