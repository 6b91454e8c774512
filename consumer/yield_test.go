package consumer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// waitingFor handles order.placed.v1 only after payment.captured.v1 of the same key.
func waitingFor(runs *tally) *consumer.Registry {
	r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add("placed")
		if runs.of("paid "+string(event.PartitionKey(e))) == 0 {
			return consumer.Step{}, consumer.Yield(fmt.Errorf("%s: not paid yet", event.PartitionKey(e)), 0)
		}
		return consumer.Step{}, nil
	})
	consumer.Handle(r, paid, func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
		runs.add("paid " + string(event.PartitionKey(e)))
		return consumer.Step{}, nil
	})
	return r
}

func TestYieldLetsTheFollowersOfTheKeyPass(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		p := s.start(config(), waitingFor(&runs), nil)
		s.publish(placed.New("o-1", orderData{}), paid.New("o-1", orderData{}))
		bustest.Eventually(t, soon, func() error {
			if st := p.Stats(); st.Handled != 2 || st.Parked != 0 {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
		if n := runs.of("placed"); n != 2 {
			t.Errorf("the event that waited ran %d times, want 2", n)
		}
	})
}

func TestYieldEndsInADeadLetterWhenNothingComes(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		s.start(config(), waitingFor(&runs), nil)
		s.publish(draft("o-1"))
		if l := s.letter(); l.Reason != event.ReasonExhausted || l.Failures != config().Retry.MaxAttempts || l.Class != "error" {
			t.Errorf("letter says %s after %d failures of class %s", l.Reason, l.Failures, l.Class)
		}
	})
}

// The timer that brings a yielding event back is stored with its failed attempt.
func TestYieldOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		cfg := config()
		cfg.Retry.MaxAttempts = 30 // it may take long until another process is there
		p := s.start(cfg, waitingFor(&runs), nil)
		e := s.publish(draft("o-1"))[0]
		bustest.Eventually(t, soon, func() bool { return p.Stats().Retried == 1 })
		p.crash()
		other := s.start(cfg, waitingFor(&runs), nil)
		s.publish(paid.New("o-1", orderData{}))
		bustest.Eventually(t, soon, func() error {
			if st := other.Stats(); st.Handled != 2 || st.Parked != 0 {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
		if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" {
			t.Errorf("the event that yielded is %s after %d failures", m.State, m.Failures)
		}
	})
}

// Where the server keeps no timers the event stays unacknowledged, and holds its key no more for that.
func TestYieldWithoutTimersLetsTheFollowersPass(t *testing.T) {
	t.Parallel()
	eachNATS(t, func(t *testing.T, kind kind) {
		t.Helper()
		s := newSystem(t)
		s.kind = kind
		if err := s.bus.JetStream().DeleteStream(t.Context(), s.bus.Names().TimersStream()); err != nil {
			t.Fatal(err)
		}
		var runs tally
		p := s.start(config(), waitingFor(&runs), nil)
		s.publish(placed.New("o-1", orderData{}), paid.New("o-1", orderData{}))
		bustest.Eventually(t, soon, func() error {
			if st := p.Stats(); st.Handled != 2 || st.Parked != 0 {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
	})
}
