package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// With the stream ledger the effect of an event is what its step emits: without
// claims a copy may run the handler, and must not take effect.
func onStreamLedgers(t *testing.T, test func(s *system, paying *consumer.Registry)) {
	t.Helper()
	for name, k := range map[string]kind{"claims": claimingKind, "claimless": claimlessKind} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = k
			test(s, handling(func(_ context.Context, e event.Event) (consumer.Step, error) { return pay(e), nil }))
		})
	}
}

func (s *system) wantEffects(events []event.Event) {
	s.tb.Helper()
	caused := map[string]int{}
	for _, e := range s.stored(pay(events[0]).Events[0].Type) {
		caused[event.Extension(e, event.ExtCausation)]++
	}
	for _, e := range events {
		if caused[e.ID()] != 1 {
			s.tb.Errorf("%s has %d effects, want one", e.ID(), caused[e.ID()])
		}
	}
}

func TestDoubled_events_on_stream_ledgers(t *testing.T) {
	t.Parallel()
	onStreamLedgers(t, func(s *system, paying *consumer.Registry) {
		cfg := config()
		cfg.InFlight = cfg.Concurrency // so that both get some
		s.start(cfg, paying, nil)
		s.start(cfg, paying, nil)
		events := s.publishN(50)
		for _, e := range events {
			s.again(e)
		}
		s.settled("payment")
		s.wantEffects(events)
	})
}

func TestRecreated_durable_on_stream_ledgers(t *testing.T) {
	t.Parallel()
	onStreamLedgers(t, func(s *system, paying *consumer.Registry) {
		cfg := config()
		cfg.Lease = time.Minute // nothing is delivered twice because the machine is slow
		p := s.start(cfg, paying, nil)
		events := s.publishN(500)
		s.settled("payment")
		if err := p.stop(); err != nil {
			s.tb.Fatal(err)
		}
		if err := s.bus.JetStream().DeleteConsumer(s.tb.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
			s.tb.Fatal(err)
		}
		fresh := s.start(cfg, paying, nil)
		s.settled("payment")
		s.wantEffects(events)
		if st := fresh.Stats(); st.Duplicate != 500 || st.Handled != 0 {
			s.tb.Errorf("stats = %+v, want 500 duplicates", st)
		}
	})
}
