package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestCopies_beyond_the_duplicate_window_take_effect_once(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var effects tally
	p := s.start(config(), counting(&effects), nil)
	e := s.publish(draft("o-1"))[0]
	again, err := s.bus.Publish(t.Context(), e)
	if err != nil || !again.Duplicate {
		t.Errorf("publishing again gives %+v, %v; want it to be told as a duplicate", again, err)
	}
	s.settled("payment")
	for range 3 { // what a window that has passed lets through
		s.again(e)
	}
	s.settled("payment")
	effects.wantOnce(t, []event.Event{e})
	if st := p.Stats(); st.Handled != 1 || st.Duplicate != 3 {
		t.Errorf("stats = %+v, want 1 handled and 3 duplicates", st)
	}
}

// wantEffects checks that each event has had its effect once: what its step emits.
func (s *system) wantEffects(events []event.Event) {
	s.tb.Helper()
	caused := map[string]int{}
	for _, e := range s.stored(paid.Type()) {
		caused[event.Extension(e, event.ExtCausation)]++
	}
	for _, e := range events {
		if caused[e.ID()] != 1 {
			s.tb.Errorf("%s has %d effects, want one", e.ID(), caused[e.ID()])
		}
	}
}

func TestDoubled_events_on_two_processes_take_effect_once(t *testing.T) {
	t.Parallel()
	eachNATS(t, func(t *testing.T, kind kind) {
		t.Helper()
		s := newSystem(t)
		s.kind = kind
		var runs tally
		slow := handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			return pay(e), ctx.Err()
		})
		cfg := config()
		cfg.InFlight = cfg.Concurrency // so that both get some
		for members := 1; members <= 2; members++ {
			s.start(cfg, slow, nil)
			// Of two owners that begin at once the later one's fence has handlers run again.
			bustest.Eventually(t, soon, func() error { return balanced(t.Context(), s, members) })
		}
		var events []event.Event
		for i := range 50 {
			e, err := s.bus.Seal(draft(fmt.Sprint("o-", i)))
			if err != nil {
				t.Fatal(err)
			}
			s.again(e)
			s.again(e)
			events = append(events, e)
		}
		s.settled("payment")
		s.wantEffects(events)
		runs.wantOnce(t, events)
	})
}

func TestLosing_copy_is_the_retry_of_a_failed_winner(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Concurrency, cfg.InFlight = 1, 1
	cfg.Lease, cfg.HandlerTimeout = 5*time.Second, 5*time.Second
	var runs tally
	verdict := make(chan error)
	r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, <-verdict
		}
		return consumer.Step{}, nil
	})
	one, two := s.start(cfg, r, nil), s.start(cfg, r, nil)
	e, err := s.bus.Seal(draft("o-1"))
	if err != nil {
		t.Fatal(err)
	}
	s.again(e)
	s.again(e)
	bustest.Eventually(t, soon, func() bool { return one.Stats().Busy+two.Stats().Busy > 0 })
	info, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	if info.NumAckPending != 2 {
		t.Errorf("%d copies unacknowledged while the winner works, want both", info.NumAckPending)
	}
	verdict <- errFlaky
	s.settled("payment")
	if n := runs.of("o-1"); n != 2 {
		t.Errorf("the handler ran %d times, want 2", n)
	}
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures != 1 {
		t.Errorf("mark is %s after %d failures, want done after 1", m.State, m.Failures)
	}
}

func TestIdentity_is_source_and_id(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var effects tally
	p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		effects.add(e.Source() + " " + e.ID())
		return consumer.Step{}, nil
	}), nil)
	pairs := [][2]string{{"/shop-a", "1"}, {"/shop-b", "1"}, {"/a", "b/c"}, {"/a/b", "c"}}
	for _, pair := range pairs {
		e, err := placed.New("o-1", orderData{}).Seal(event.Identity{Source: pair[0], ID: pair[1], Time: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if receipt, err := s.bus.Publish(t.Context(), e); err != nil || receipt.Duplicate {
			t.Errorf("%v: %+v, %v", pair, receipt, err)
		}
	}
	s.settled("payment")
	for _, pair := range pairs {
		if n := effects.of(pair[0] + " " + pair[1]); n != 1 {
			t.Errorf("%v took effect %d times, want once", pair, n)
		}
	}
	if n := p.Stats().Duplicate; n != 0 {
		t.Errorf("%d duplicates, want none", n)
	}
}

func TestTwo_consumers_each_take_effect(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var payment, audit tally
	s.start(config(), counting(&payment), nil)
	cfg := config()
	cfg.Name = "audit"
	s.start(cfg, counting(&audit), nil)
	events := s.publishN(20)
	s.settled("payment")
	s.settled("audit")
	payment.wantOnce(t, events)
	audit.wantOnce(t, events)
}

func TestRecreated_durable_takes_no_effect_again(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	paying := handling(func(_ context.Context, e event.Event) (consumer.Step, error) { return pay(e), nil })
	cfg := config()
	cfg.Lease = time.Minute // nothing is delivered twice because the machine is slow
	p := s.start(cfg, paying, nil)
	events := s.publishN(500)
	s.settled("payment")
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
		t.Fatal(err)
	}
	fresh := s.start(cfg, paying, nil)
	s.settled("payment")
	s.wantEffects(events)
	if st := fresh.Stats(); st.Duplicate != 500 || st.Handled != 0 {
		t.Errorf("stats = %+v, want 500 duplicates", st)
	}
}

func TestMessageIDOfAForeignProducerDoesNotMatter(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var effects tally
	s.start(config(), counting(&effects), nil)
	e, err := s.bus.Seal(draft("o-1"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.bus.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		m.Header.Set(nats.MsgIdHdr, id)
		if _, err := s.bus.JetStream().PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	s.settled("payment")
	effects.wantOnce(t, []event.Event{e})
}
