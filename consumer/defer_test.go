package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// deferring puts retries of more than a second off.
func deferring() consumer.Config {
	cfg := config()
	cfg.Retry.DeferAfter = time.Second
	return cfg
}

// deferred returns what waits for its retry.
func (s *system) deferred() []*nats.Msg {
	s.tb.Helper()
	return s.messages(s.bus.Names().TimersStream(), s.bus.Names().Root("timer.payment.retry.*"))
}

// deferrals returns 1 if a retry was ever put off, also if its timer has fired since;
// else 0.
func (s *system) deferrals() int {
	s.tb.Helper()
	stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().TimersStream())
	if err != nil {
		s.tb.Fatal(err)
	}
	return int(min(stream.CachedInfo().State.LastSeq, 1))
}

func TestLong_retries_leave_room_for_the_healthy(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.MaxAckPending = 10
	var healthy tally
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if strings.HasPrefix(e.ID(), "bad") {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, time.Minute)
		}
		healthy.add(e.ID())
		return consumer.Step{}, nil
	}), nil)
	for i := range 10 {
		s.publish(draft(fmt.Sprint("bad-", i)))
	}
	bustest.Eventually(t, soon, func() bool { return p.Stats().Retried == 10 })
	events := s.publishN(20)
	begin := time.Now()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 20 })
	t.Logf("20 healthy events handled in %v", time.Since(begin))
	healthy.wantOnce(t, events)
	s.settled("payment")
	if n := len(s.deferred()); n != 10 {
		t.Errorf("%d retries wait, want 10", n)
	}
	if err := p.Health(); err != nil {
		t.Errorf("unhealthy: %v", err)
	}
	if m := s.mark("payment", event.NewEventKey(s.bus.Source(), "bad-0")); m.State != "waiting" || m.Failures != 1 {
		t.Errorf("%s after %d failures, want waiting after 1", m.State, m.Failures)
	}
}

// A long retry outlives its consumer's durable: it is shown as waiting, and the
// consumer takes it when it is started again.
func TestDeferredRetryOfARemovedConsumer(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := deferring()
	runs, cured := new(tally), new(atomic.Bool)
	registry := func() *consumer.Registry {
		return handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			if cured.Load() {
				return consumer.Step{}, nil
			}
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 1100*time.Millisecond)
		})
	}
	p := s.start(cfg, registry(), nil)
	s.publish(draft("bad"))
	bustest.Eventually(t, soon, func() bool { return p.Stats().Retried == 1 })
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
		t.Fatal(err)
	}
	waiting := func() []dlq.Stranded {
		stats, err := s.queue().Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stats.Stranded
	}
	bustest.Eventually(t, soon, func() bool { // between the streams it is in neither for a moment
		w := waiting()
		return len(w) == 1 && w[0].Consumer == "payment" && w[0].Deferred+w[0].Arrived == 1
	})
	bustest.Eventually(t, soon, func() bool {
		w := waiting()
		return len(w) == 1 && w[0] == dlq.Stranded{Consumer: "payment", Arrived: 1}
	})
	cured.Store(true)
	s.start(cfg, registry(), nil)
	bustest.Eventually(t, soon, func() bool { return s.mark("payment", event.NewEventKey(s.bus.Source(), "bad")).State == "done" })
	if w := waiting(); len(w) != 0 {
		t.Errorf("when it was handled: %+v", w)
	}
}

// TestDeferredRetryKeepsTheMessage: what comes back is the event to the last
// byte, and its dead letter tells the whole story.
func TestDeferredRetryKeepsTheMessage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		header nats.Header
		data   string
	}{
		"binary": {header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {"e1"}, "ce-source": {"/shop"}, "ce-type": {"order.placed.v1"},
			"ce-partitionkey": {"o-1"}, "ce-note": {"50%25"}, "x-own": {"a", "b"},
			"Nats-Msg-Id": {"msg-1"}, "Nats-TTL": {"1h"}, "Nats-Expected-Stream": {""},
		}, data: ` {"amount": 7}` + "\n"},
		"structured": {
			header: nats.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}},
			data:   `{"specversion":"1.0","id":"e1","source":"/shop","type":"order.placed.v1","partitionkey":"o-1","data":{"amount":7}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			tt.header.Set("Nats-Expected-Stream", s.bus.Names().EventsStream())
			var runs tally
			cfg := deferring()
			cfg.Retry.MaxAttempts = 4
			s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				if n := runs.add(e.ID()); n == 2 {
					return consumer.Step{}, errFlaky // at once
				}
				return consumer.Step{}, consumer.RetryAfter(errFlaky, 1100*time.Millisecond)
			}), nil)
			sequence := s.inject(tt.header, tt.data)
			l := s.letter()
			s.settled("payment")
			if n := runs.of("e1"); n != 4 || l.Failures != 4 || len(l.Attempts) != 4 || l.Reason != event.ReasonExhausted {
				t.Errorf("%d runs, letter says %s after %d failures, tells %d", n, l.Reason, l.Failures, len(l.Attempts))
			}
			if !l.FirstFailure.Equal(l.Attempts[0].At) || l.FirstError != errFlaky.Error() {
				t.Errorf("first failure %v: %s, want that of %+v", l.FirstFailure, l.FirstError, l.Attempts[0])
			}
			if want := s.storedOn(placed.Type(), "o-1"); l.Origin.Subject != want ||
				l.Origin.Stream != s.bus.Names().EventsStream() || l.Origin.Sequence != sequence {
				t.Errorf("origin %+v, want %s at %d", l.Origin, want, sequence)
			}
			if l.EventKey != event.NewEventKey("/shop", "e1") {
				t.Errorf("event key %s", l.EventKey)
			}
			redrives := s.messages(s.bus.Names().EventsStream(), s.bus.Names().RedriveFilter("payment"))
			if len(redrives) != 2 {
				t.Fatalf("%d redrives, want 2", len(redrives))
			}
			for _, m := range redrives {
				if string(m.Data) != tt.data {
					t.Errorf("data became %q", m.Data)
				}
				for name, values := range tt.header {
					if strings.HasPrefix(name, "Nats-") {
						if m.Header.Get(name) != "" {
							t.Errorf("control header %s was copied", name)
						}
						continue
					}
					if got := m.Header[name]; fmt.Sprint(got) != fmt.Sprint(values) {
						t.Errorf("%s became %q, want %q", name, got, values)
					}
				}
			}
			if n := len(s.deferred()); n != 0 {
				t.Errorf("%d retries still wait", n)
			}
		})
	}
}

func TestDeferredRetryIsPickedUpAfterARestart(t *testing.T) {
	t.Parallel()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: server.URL(), Names: event.Names{Prefix: bustest.Prefix()}}), topology.Config{})
	s := &system{tb: t, bus: b, url: server.URL()}
	p := s.prepare(deferring(), handling(func(context.Context, event.Event) (consumer.Step, error) {
		return consumer.Step{}, consumer.RetryAfter(errFlaky, 2*time.Second)
	}), nil)
	p.run()
	e := s.publishN(1)[0]
	bustest.Eventually(t, soon, func() bool { return p.Stats().Retried == 1 })
	s.settled("payment")
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	bustest.Eventually(t, soon, b.Health)
	var effects tally
	p = s.prepare(deferring(), counting(&effects), nil)
	p.run()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	effects.wantOnce(t, []event.Event{e})
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures != 1 {
		t.Errorf("%s after %d failures, want done after 1", m.State, m.Failures)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestDeferredRetryOfAReplay keeps the replay's number: it is neither taken for
// an older one, nor can it be the next.
func TestDeferredRetryOfAReplay(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	p := s.start(deferring(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		switch runs.add(e.ID()) {
		case 1:
			return consumer.Step{}, consumer.Permanent(errors.New("wrong"))
		case 2:
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 1100*time.Millisecond)
		case 3:
			return consumer.Step{}, consumer.Permanent(errors.New("wrong again"))
		}
		return consumer.Step{}, nil
	}), nil)
	s.publishN(1)
	first := s.letter()
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 2 })
	l := s.letter()
	if l.Count != 2 || l.Failures != 2 || len(l.Attempts) != 3 || l.FirstError != "wrong" || l.Error != "wrong again" {
		t.Errorf("letter %+v with %d attempts, want the second one, with all three", l.Entry, len(l.Attempts))
	}
	if l.Origin != first.Origin {
		t.Errorf("origin %+v, want %+v", l.Origin, first.Origin)
	}
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
}

// TestDeferredRetryWhoseOriginalComesAgain: the original comes again and is handled
// early; the retry finds it done.
func TestDeferredRetryWhoseOriginalComesAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	p := s.start(deferring(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 1500*time.Millisecond)
		}
		return consumer.Step{}, nil
	}), nil)
	e := s.publishN(1)[0]
	bustest.Eventually(t, soon, func() bool { return p.Stats().Retried == 1 })
	s.again(e)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 && p.Stats().Duplicate == 1 })
	if n := runs.of(e.ID()); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
}

// TestDeferredEventDoesNotHoldItsKey: order is not kept across long retries.
func TestDeferredEventDoesNotHoldItsKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		if e.ID() == "first" {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, time.Hour)
		}
		return consumer.Step{}, nil
	}), nil)
	for _, id := range []string{"first", "second"} {
		d := draft(id)
		d.Key = "o-1"
		s.publish(d)
	}
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	if runs.of("first") != 1 || runs.of("second") != 1 {
		t.Error("the second event did not pass the first one")
	}
}

// TestLongRetryStaysWhereNoTimersAre: the delivery stays open, as before there
// were timers, and nothing is lost.
func TestLongRetryStaysWhereNoTimersAre(t *testing.T) {
	t.Parallel()
	s := bareSystem(t)
	old := topology.New(s.bus.Names(), topology.Config{})
	old.Streams[0].AllowMsgSchedules = false
	if _, err := topology.Provision(t.Context(), s.bus, old); err != nil {
		t.Fatal(err)
	}
	var runs tally
	p := s.start(deferring(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 1100*time.Millisecond)
		}
		return consumer.Step{}, nil
	}), nil)
	s.publishN(1)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	if n := len(s.messages(s.bus.Names().EventsStream(), s.bus.Names().Root("redrive.>"))); n != 0 {
		t.Errorf("%d redrives, want none", n)
	}
}

// TestDeferralThatCannotBeStored: the retry cannot be stored, so the event stays.
func TestDeferralThatCannotBeStored(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs, faults tally
	wrap := func(_ *process, l dedup.Ledger) dedup.Ledger { return &unreleasing{Ledger: l, faults: &faults} }
	p := s.start(deferring(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 1100*time.Millisecond)
		}
		return consumer.Step{}, nil
	}), wrap)
	e := s.publishN(1)[0]
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	s.settled("payment")
	if faults.of("release") != 1 || s.mark("payment", event.EventKeyOf(e)).State != "done" {
		t.Error("not released, or not done")
	}
}

// unreleasing fails before a release.
type unreleasing struct {
	dedup.Ledger
	faults *tally
}

func (u *unreleasing) Release(ctx context.Context, c *dedup.Claim, failure *event.Attempt, later *nats.Msg) error {
	if later != nil && u.faults.add("release") == 1 {
		return bus.ErrUnavailable
	}
	return u.Ledger.Release(ctx, c, failure, later)
}

// TestDeferredRetryKnowsItsPast: what brings the event back is a message of its
// own, and yet no first delivery, whatever the ledger.
func TestDeferredRetryKnowsItsPast(t *testing.T) {
	t.Parallel()
	eachNATS(t, func(t *testing.T, kind kind) {
		t.Helper()
		s := newSystem(t)
		s.kind = kind
		var runs tally
		p := s.start(deferring(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 1100*time.Millisecond)
		}), nil)
		e := s.publishN(1)[0]
		l := s.letter()
		s.settled("payment")
		if n := runs.of(e.ID()); n != 3 || l.Failures != 3 || len(l.Attempts) != 3 || l.Crashes != 0 {
			t.Errorf("%d runs, the letter tells of %d failures (%d in detail) and %d crashes; want 3, 3 and none", n, l.Failures, len(l.Attempts), l.Crashes)
		}
		if st := p.Stats(); st.Lost != 0 {
			t.Errorf("stats %+v, want none lost", st)
		}
	})
}
