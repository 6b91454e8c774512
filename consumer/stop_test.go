package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// stopping is a configuration under which only a clean stop gives events to
// another process soon.
func stopping() consumer.Config {
	cfg := config()
	cfg.Concurrency, cfg.Lease, cfg.HandlerTimeout, cfg.Grace = 5, 5*time.Minute, time.Minute, soon
	return cfg
}

func TestStop_finishes_what_runs_and_gives_the_rest_back(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	begun, let := make(chan struct{}, 64), make(chan struct{})
	old := s.start(stopping(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		begun <- struct{}{}
		<-let
		return consumer.Step{}, nil
	}), nil)
	events := s.publishN(55)
	for range 5 {
		<-begun
	}
	bustest.Eventually(t, soon, func() bool { return old.Stats().InFlight == 55 })
	old.cancel()
	fresh := s.start(stopping(), counting(&runs), nil)
	bustest.Eventually(t, soon, func() bool { return fresh.Stats().Handled == 50 })
	select {
	case <-old.done:
		t.Error("Run returned while handlers were running")
	default:
	}
	close(let)
	if err := old.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	s.settled("payment")
	runs.wantOnce(t, events)
	if st := old.Stats(); st.Handled != 5 || st.Released < 50 {
		t.Errorf("stats of the stopped process = %+v, want 5 handled and 50 or more released", st)
	}
	for _, e := range events {
		if m := s.mark("payment", event.EventKeyOf(e)); m.Failures != 0 || m.Crashes != 0 {
			t.Errorf("%s: %d failures and %d crashes, want none", e.ID(), m.Failures, m.Crashes)
		}
	}
}

func TestHandler_longer_than_the_grace_is_given_back(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := stopping()
	cfg.Grace = 50 * time.Millisecond
	begun := make(chan struct{})
	cause := make(chan error, 1)
	p := s.start(cfg, handling(func(ctx context.Context, _ event.Event) (consumer.Step, error) {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return consumer.Step{}, ctx.Err()
	}), nil)
	events := s.publishN(1)
	<-begun
	if err := p.stop(); err != nil {
		t.Fatalf("Run = %v", err)
	}
	if err := <-cause; err == nil || errors.Is(err, consumer.ErrTimeout) {
		t.Errorf("the handler was cancelled because of %v, want the shutdown", err)
	}
	var effects tally
	s.start(cfg, counting(&effects), nil)
	s.settled("payment")
	effects.wantOnce(t, events)
	if m := s.mark("payment", event.EventKeyOf(events[0])); m.Failures != 0 || m.Crashes != 0 {
		t.Errorf("%d failures and %d crashes, want none", m.Failures, m.Crashes)
	}
}

// TestStopKeepsWhatAHandlerDecided: a handler that ends well, or for good,
// although it was cancelled is taken at its word.
func TestStopKeepsWhatAHandlerDecided(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := stopping()
	cfg.Grace = 50 * time.Millisecond
	begun := make(chan struct{}, 3)
	p := s.start(cfg, handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		begun <- struct{}{}
		<-ctx.Done()
		switch e.ID() {
		case "good":
			return pay(e), nil
		case "skip":
			return consumer.Step{}, consumer.Skip
		}
		return consumer.Step{}, consumer.Permanent(errFlaky)
	}), nil)
	s.publish(draft("good"), draft("skip"), draft("bad"))
	for range 3 {
		<-begun
	}
	if err := p.stop(); err != nil {
		t.Fatalf("Run = %v", err)
	}
	s.settled("payment")
	if st := p.Stats(); st.Handled != 1 || st.Skipped != 1 || st.Parked != 1 {
		t.Errorf("stats = %+v, want one handled, one skipped, one parked", st)
	}
	if n := len(s.stored(paid.Type())); n != 1 {
		t.Errorf("%d events emitted, want 1", n)
	}
}

func TestHandlersThatIgnoreTheirCancellationAreAbandoned(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Grace = time.Millisecond
	begun, let := make(chan struct{}), make(chan struct{})
	p := s.prepare(cfg, handling(func(context.Context, event.Event) (consumer.Step, error) {
		close(begun)
		<-let
		return consumer.Step{}, nil
	}), nil)
	p.run()
	s.publishN(1)
	<-begun
	if err := p.stop(); !errors.Is(err, consumer.ErrAbandoned) {
		t.Errorf("Run = %v, want ErrAbandoned", err)
	}
	close(let)
	bustest.Eventually(t, soon, func() bool { return p.Stats().InFlight == 0 })
}

func TestRunTwiceIsRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), counting(new(tally)), nil)
	s.publishN(1)
	s.settled("payment")
	if err := p.Run(t.Context()); !errors.Is(err, consumer.ErrConfig) {
		t.Errorf("second Run = %v, want ErrConfig", err)
	}
}

func TestStopBeforeTheStartIsClean(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.prepare(config(), counting(new(tally)), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(ctx); err != nil {
		t.Errorf("Run of an ended context = %v", err)
	}
}

func TestStopAfterTheConnectionWasClosedIsClean(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), counting(new(tally)), nil)
	s.publishN(3)
	s.settled("payment")
	if err := p.bus.Close(); err != nil {
		t.Fatal(err)
	}
	unhealthy(t, p)
	if err := p.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestStopDuringAnOutageIsClean(t *testing.T) {
	t.Parallel()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{URL: server.URL(), Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{})
	s := &system{tb: t, bus: b, url: server.URL()}
	cfg := config()
	cfg.Grace = time.Minute
	p := s.start(cfg, counting(new(tally)), nil)
	s.publishN(1)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	server.Stop(t)
	bustest.Eventually(t, soon, func() bool { return p.bus.Health() != nil && b.Health() != nil })
	began := time.Now()
	if err := p.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(began); took > cfg.Grace/2 {
		t.Errorf("it took %v, though nothing was under way", took)
	}
}

// A stream that does not exist is told at once, with the remedy.
func TestAMissingStreamIsToldWithItsRemedy(t *testing.T) {
	t.Parallel()
	s := &system{tb: t, server: bustest.Server(t)}
	s.bus = bustest.Connect(t, bus.Config{InProcess: s.server, Names: event.Names{Prefix: bustest.Prefix()}})
	foreign := config()
	foreign.From = &consumer.Stream{Name: "NOBODYS", Subjects: []string{"x.>"}}
	for want, cfg := range map[string]consumer.Config{
		"stream " + s.bus.Names().EventsStream() + " does not exist: create it with `farandole topology apply`": config(),
		"stream NOBODYS does not exist: create it, or correct From":                                             foreign,
	} {
		p := s.prepare(cfg, counting(new(tally)), nil)
		began := time.Now()
		err := p.Run(t.Context())
		if !errors.Is(err, bus.ErrNoStream) || !strings.Contains(err.Error(), want) {
			t.Errorf("Run: %v, want %q", err, want)
		}
		if took := time.Since(began); took > 30*time.Second { // the bus would wait for a minute
			t.Errorf("it was waited for: %v", took)
		}
	}
}

func TestMetricsCountOutcomes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	reg := prometheus.NewRegistry()
	cfg.Metrics = reg
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		switch e.ID() {
		case "bad":
			return consumer.Step{}, consumer.Permanent(errFlaky)
		case "skip":
			return consumer.Step{}, consumer.Skip
		}
		return consumer.Step{}, nil
	}), nil)
	e := s.publish(draft("good"), draft("bad"), draft("skip"))[0]
	s.settled("payment")
	s.again(e)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Duplicate == 1 })
	bustest.Eventually(t, soon, func() error {
		return gathered(reg, map[string]float64{
			"farandole_deliveries_total/handled": 1, "farandole_deliveries_total/parked": 1,
			"farandole_deliveries_total/skipped": 1, "farandole_deliveries_total/duplicate": 1,
			"farandole_deliveries_total/lost": 0,
			"farandole_in_flight/":            0, "farandole_healthy/": 1, "farandole_handler_seconds/": 3,
		})
	})

	_, err := consumer.New(p.bus, counting(new(tally)), cfg)
	if !errors.Is(err, consumer.ErrConfig) {
		t.Errorf("registering the same metrics twice gives %v, want ErrConfig", err)
	}
	p.crash()
	bustest.Eventually(t, soon, func() error { return gathered(reg, map[string]float64{"farandole_healthy/": 0}) })
}

// gathered compares metrics by name and outcome, as sums over event types.
func gathered(reg *prometheus.Registry, want map[string]float64) error {
	families, err := reg.Gather()
	if err != nil {
		return err
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			outcome, service := "", ""
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "outcome":
					outcome = l.GetValue()
				case "consumer":
					service = l.GetValue()
				}
			}
			if service != "payment" {
				return fmt.Errorf("%s is of consumer %q", f.GetName(), service)
			}
			got[f.GetName()+"/"+outcome] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			return fmt.Errorf("%s is %v (there: %v), want %v", name, v, ok, value)
		}
	}
	return nil
}
