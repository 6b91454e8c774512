package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// version is a service of which the new version handles a second type.
func version(runs *tally, second bool) *consumer.Registry {
	r := consumer.NewRegistry()
	h := func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
		runs.add(e.ID())
		return consumer.Step{}, nil
	}
	consumer.Handle(r, placed, h)
	if second {
		consumer.Handle(r, reserved, h)
	}
	return r
}

// reservation is an event of the second type.
func reservation(id string) event.Draft {
	d := reserved.New(event.Key(id), orderData{Amount: 1})
	d.ID = id
	return d
}

// brief is a configuration with the shortest lease.
func brief() consumer.Config {
	cfg := config()
	cfg.HandlerTimeout, cfg.Lease = 500*time.Millisecond, time.Second
	return cfg
}

func (s *system) filters() []string {
	s.tb.Helper()
	info, err := s.durable("payment")
	if err != nil {
		s.tb.Fatal(err)
	}
	return info.Config.FilterSubjects
}

// caughtUp waits until no durable is left that catches up.
func (s *system) caughtUp() {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() bool {
		_, err := s.durable("payment_catchup")
		return errors.Is(err, jetstream.ErrConsumerNotFound)
	})
}

func TestOldVersionLeavesTheFilterOfTheNewOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	v2 := s.prepare(config(), version(runs, true), nil)
	v2.run()
	events := s.publish(reservation("r-1"))
	bustest.Eventually(t, soon, func() bool { return runs.of("r-1") == 1 })
	v1 := s.prepare(config(), version(runs, false), nil)
	v1.run()
	bustest.Eventually(t, soon, v1.Health)
	if got := s.filters(); len(got) != 3 {
		t.Errorf("with both versions running the filters are %v, want those of both types and the redrives", got)
	}
	if err := v2.stop(); err != nil {
		t.Fatal(err)
	}
	events = append(events, s.publish(reservation("r-2"), draft("o-1"))...) // after a roll-back
	bustest.Eventually(t, soon, func() bool { return runs.of("o-1") == 1 && v1.Stats().Released > 0 })
	if err := v1.stop(); err != nil {
		t.Fatal(err)
	}
	s.start(config(), version(runs, true), nil)
	bustest.Eventually(t, soon, func() bool { return runs.of("r-2") == 1 })
	s.settled("payment")
	runs.wantOnce(t, events)
	if n := len(s.letters()); n > 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

func TestTypesOfTheNewVersionAreNotSpentByTheOldOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	s.start(config(), version(runs, false), nil)
	bustest.Eventually(t, soon, func() error { _, err := s.durable("payment"); return err })
	v2 := s.start(config(), version(runs, true), nil)
	bustest.Eventually(t, soon, v2.Health)
	drafts := []event.Draft{draft("o-1")}
	for i := range 20 {
		drafts = append(drafts, reservation(fmt.Sprint("r-", i)))
	}
	events := s.publish(drafts...)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.settled("payment")
	runs.wantOnce(t, events)
	for _, e := range events {
		if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures > 0 || m.Crashes > 0 {
			t.Errorf("%s: mark is %+v, want done with no attempt spent", e.ID(), m)
		}
	}
	if n := len(s.letters()); n > 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

func TestTypeAddedToARunningNameStartsAtTheBeginning(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	events := s.publish(reservation("r-0"), draft("o-0"), reservation("r-1"))
	v1 := s.prepare(config(), version(runs, false), nil)
	v1.run()
	events = append(events, s.publish(reservation("r-2"), draft("o-1"))...)
	bustest.Eventually(t, soon, func() bool { return runs.of("o-0")+runs.of("o-1") == 2 })
	for range 2 { // two replicas add it at once
		s.start(config(), version(runs, true), nil)
	}
	events = append(events, s.publish(reservation("r-3"), draft("o-2"))...)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.caughtUp()
	s.settled("payment")
	if err := v1.stop(); err != nil {
		t.Fatal(err)
	}
	runs.wantOnce(t, events)
}

// The process that adds a type dies when it has made what catches up, and
// nothing else.
func TestTypeIsAddedAlthoughTheFirstToAddItDied(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	events := s.publish(reservation("r-0"))
	s.start(config(), version(runs, false), nil)
	bustest.Eventually(t, soon, func() error { _, err := s.durable("payment"); return err })
	n := s.bus.Names()
	if _, err := s.bus.JetStream().CreateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment_catchup", FilterSubjects: []string{n.TypeFilter(reserved.Type())}, AckPolicy: jetstream.AckExplicitPolicy,
	}); err != nil {
		t.Fatal(err)
	}
	s.start(config(), version(runs, true), nil)
	events = append(events, s.publish(reservation("r-1"), draft("o-1"))...)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.caughtUp()
	s.settled("payment")
	runs.wantOnce(t, events)
}

func TestFilterThatOthersNarrowedIsMended(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	s.start(brief(), version(runs, true), nil)
	events := s.publish(reservation("r-0"))
	bustest.Eventually(t, soon, func() bool { return runs.of("r-0") == 1 })
	info, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	narrow := info.Config
	narrow.FilterSubjects = []string{s.bus.Names().TypeFilter(placed.Type())}
	if _, err := s.bus.JetStream().UpdateConsumer(t.Context(), s.bus.Names().EventsStream(), narrow); err != nil {
		t.Fatal(err)
	}
	events = append(events, s.publish(reservation("r-1"), draft("o-1"))...)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.caughtUp()
	s.settled("payment")
	runs.wantOnce(t, events)
}

func TestTypeThatNobodyHandlesIsShown(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	v2 := s.prepare(brief(), version(runs, true), nil)
	v2.run()
	s.publish(draft("o-1"))
	bustest.Eventually(t, soon, func() bool { return runs.of("o-1") == 1 })
	if err := v2.stop(); err != nil {
		t.Fatal(err)
	}
	cfg := brief()
	metrics := prometheus.NewRegistry()
	cfg.Metrics = metrics
	v1 := s.start(cfg, version(runs, false), nil)
	s.publish(reservation("r-1"))
	bustest.Eventually(t, soon, func() error {
		if err := v1.Health(); err == nil || !strings.Contains(err.Error(), "inventory.reserved.v1 (1 events wait)") {
			return fmt.Errorf("health is %w, want it to name the type", err)
		}
		return nil
	})
	shown := func() float64 {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "farandole_unhandled_events" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return 0
	}
	if n := shown(); n != 1 {
		t.Errorf("%v unhandled events in the metrics, want 1", n)
	}
	s.start(brief(), version(runs, true), nil)
	bustest.Eventually(t, soon, func() bool { return runs.of("r-1") == 1 && v1.Health() == nil && shown() == 0 })
}

func TestLongestLeaseOfAllReplicasWins(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	long := config()
	long.MaxAckPending = 100
	s.start(long, counting(new(tally)), nil)
	bustest.Eventually(t, soon, func() error { _, err := s.durable("payment"); return err })
	short := brief()
	short.MaxAckPending = 50
	p := s.start(short, counting(new(tally)), nil)
	bustest.Eventually(t, soon, p.Health)
	info, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	if info.Config.AckWait != long.Lease || info.Config.MaxAckPending != long.MaxAckPending {
		t.Errorf("ack wait %v and MaxAckPending %d, want %v and %d", info.Config.AckWait, info.Config.MaxAckPending, long.Lease, long.MaxAckPending)
	}
}

func TestDurableThatCannotBeChangedIsRefusedByName(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		have jetstream.ConsumerConfig
		want []string
	}{
		"ack policy":    {jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy}, []string{"AckNone", "want explicit"}},
		"replay policy": {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, ReplayPolicy: jetstream.ReplayOriginalPolicy}, []string{"original", "want instant"}},
		"no filter":     {jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy}, []string{"whole stream"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			have := tt.have
			have.Durable = "payment"
			if name != "no filter" {
				have.FilterSubject = s.bus.Names().TypeFilter(placed.Type())
			}
			if _, err := s.bus.JetStream().CreateConsumer(t.Context(), s.bus.Names().EventsStream(), have); err != nil {
				t.Fatal(err)
			}
			p := s.prepare(config(), counting(new(tally)), nil)
			p.run()
			err := p.stopped(t)
			if !errors.Is(err, consumer.ErrConfig) {
				t.Fatalf("Run = %v, want ErrConfig", err)
			}
			for _, text := range append(tt.want, "nats consumer rm") {
				if strings.Count(err.Error(), text) != 1 {
					t.Errorf("Run = %v, want it to say %q once", err, text)
				}
			}
			if err := p.Health(); !errors.Is(err, consumer.ErrUnhealthy) || !errors.Is(err, consumer.ErrConfig) {
				t.Errorf("Health after the end = %v, want it to say why", err)
			}
		})
	}
}

// stopped waits until Run has returned by itself.
func (p *process) stopped(t *testing.T) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(soon):
		t.Fatal("Run does not return")
		return nil
	}
}

func TestDurableWhoseOtherSettingsDifferIsAdopted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js, stream := s.bus.JetStream(), s.bus.Names().EventsStream()
	pause := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	if _, err := js.CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{
		Durable: "payment", AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverNewPolicy, MaxDeliver: 3,
		FilterSubject: s.bus.Names().TypeFilter(placed.Type()), PauseUntil: &pause, Metadata: map[string]string{"team": "a"},
		MaxRequestBatch: 1, InactiveThreshold: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	s.start(config(), counting(new(tally)), nil)
	bustest.Eventually(t, soon, func() bool { return len(s.filters()) == 2 })
	info, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	cfg := info.Config
	if cfg.MaxDeliver != -1 || cfg.MaxRequestBatch > 0 || cfg.InactiveThreshold > 0 {
		t.Errorf("what a consumer cannot work with was left: %+v", cfg)
	}
	if cfg.PauseUntil == nil || !cfg.PauseUntil.Equal(pause) || cfg.Metadata["team"] != "a" || cfg.DeliverPolicy != jetstream.DeliverNewPolicy {
		t.Errorf("what others have set was changed: %+v", cfg)
	}
}
