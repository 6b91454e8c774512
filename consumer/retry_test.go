package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// TestDependency_down_for_a_while fixes the jitter near its top: full
// jitter alone promises no least time over all attempts.
func TestDependency_down_for_a_while(t *testing.T) {
	t.Parallel()
	const events = 30
	s := newSystem(t)
	cfg := config()
	cfg.Retry = consumer.RetryPolicy{MaxAttempts: 5, BaseDelay: 500 * time.Millisecond, MaxDelay: 5 * time.Second}
	down := time.Now().Add(3 * time.Second)
	p := s.prepare(cfg, handling(func(context.Context, event.Event) (consumer.Step, error) {
		if time.Now().Before(down) {
			return consumer.Step{}, errFlaky
		}
		return consumer.Step{}, nil
	}), nil)
	p.run()
	defer func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}()
	s.publishN(events)
	bustest.Eventually(t, soon, func() error {
		if st := p.Stats(); st.Handled < events {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if n := len(s.letters()); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

func TestLowered_maximum_parks_what_is_above_it(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Retry.MaxAttempts, cfg.Grace = 10, time.Millisecond
	var runs tally
	fifth := make(chan struct{})
	r := handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) < 5 {
			return consumer.Step{}, errFlaky
		}
		close(fifth)
		<-ctx.Done()
		return consumer.Step{}, ctx.Err()
	})
	p := s.start(cfg, r, nil)
	s.publishN(1)
	<-fifth
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	cfg.Retry.MaxAttempts = 3
	s.start(cfg, r, nil)
	l := s.letter()
	s.settled("payment")
	if l.Reason != event.ReasonExhausted || l.Failures != 4 {
		t.Errorf("letter says %s after %d failures, want exhausted after 4", l.Reason, l.Failures)
	}
	if n := runs.of("o-0"); n != 5 {
		t.Errorf("the handler ran %d times, want not again", n)
	}
}

func TestRestarts_spend_no_attempts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Grace, cfg.Lease, cfg.HandlerTimeout, cfg.Retry.MaxAttempts = time.Millisecond, time.Second, time.Second, 2
	e := s.publishN(1)[0]
	// A handler that is too long for any of these processes.
	run := func() *process {
		begun := make(chan struct{})
		p := s.start(cfg, handling(func(ctx context.Context, _ event.Event) (consumer.Step, error) {
			close(begun)
			<-ctx.Done()
			return consumer.Step{}, ctx.Err()
		}), nil)
		<-begun
		return p
	}
	for range 6 {
		if err := run().stop(); err != nil {
			t.Fatal(err)
		}
	}
	if m := s.mark("payment", event.EventKeyOf(e)); m.Failures != 0 || m.Crashes != 0 || m.State != "waiting" {
		t.Errorf("%s with %d failures and %d crashes after graceful restarts, want waiting with none", m.State, m.Failures, m.Crashes)
	}
	for range 2 {
		run().crash()
	}
	var effects tally
	s.start(cfg, counting(&effects), nil)
	s.settled("payment")
	effects.wantOnce(t, []event.Event{e})
	if m := s.mark("payment", event.EventKeyOf(e)); m.Failures != 0 || m.Crashes != 2 {
		t.Errorf("%d failures and %d crashes, want none and 2: crashes are counted on their own", m.Failures, m.Crashes)
	}
}

func TestRetries_that_clog_the_durable_are_reported(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.MaxAckPending, cfg.Retry.DeferAfter = 10, 2*time.Minute
	var healthy tally
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if strings.HasPrefix(e.ID(), "bad") {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, time.Minute)
		}
		healthy.add(e.ID())
		return consumer.Step{}, nil
	}), nil)
	for i := range 9 {
		s.publish(draft(fmt.Sprint("bad-", i)))
	}
	bustest.Eventually(t, soon, func() bool { return p.Stats().Retried == 9 })
	s.publish(draft("good-1"))
	bustest.Eventually(t, soon, func() bool { return healthy.of("good-1") == 1 }) // one place is left
	if err := p.Health(); err != nil {
		t.Errorf("unhealthy while events get through: %v", err)
	}
	s.publish(draft("bad-9"))
	bustest.Eventually(t, soon, func() bool {
		err := p.Health()
		return errors.Is(err, consumer.ErrUnhealthy) && strings.Contains(err.Error(), "10 events wait for their retry, MaxAckPending is 10")
	})
}

func TestStream_that_forgets_before_the_last_retry_is_refused(t *testing.T) {
	t.Parallel()
	s := bareSystem(t)
	bustest.Provision(t, s.bus, topology.Config{EventsMaxAge: 5 * time.Second, Duplicates: time.Second})
	cfg := config()
	cfg.Lease, cfg.Retry.BaseDelay, cfg.Retry.MaxDelay = 2*time.Second, 10*time.Second, 10*time.Second
	p := s.prepare(cfg, counting(new(tally)), nil)
	err := p.Run(t.Context())
	if !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), "drops messages after 5s, retries take up to 22s") {
		t.Errorf("Run = %v, want ErrConfig that names both times", err)
	}
}

func TestAttempts_are_as_many_as_configured(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Retry.MaxAttempts = 4
	var runs tally
	s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		if e.ID() == "permanent" {
			return consumer.Step{}, consumer.Permanent(errFlaky)
		}
		return consumer.Step{}, errFlaky
	}), nil)
	s.publish(draft("transient"), draft("permanent"))
	s.settled("payment")
	if n := runs.of("transient"); n != 4 {
		t.Errorf("the failing event ran %d times, want 4", n)
	}
	if n := runs.of("permanent"); n != 1 {
		t.Errorf("the hopeless event ran %d times, want once", n)
	}
	letters := s.letters()
	if len(letters) != 2 {
		t.Errorf("%d dead letters, want 2", len(letters))
	}
	for _, l := range letters {
		if want := map[string]string{"transient": event.ReasonExhausted, "permanent": event.ReasonPermanent}[l.EventID]; l.Reason != want {
			t.Errorf("%s is parked as %s, want %s", l.EventID, l.Reason, want)
		}
	}
}

// TestRetryHorizonMustBeCoveredByTheLedger: a mark that is forgotten between
// two attempts would let the event start afresh.
func TestRetryHorizonMustBeCoveredByTheLedger(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Retry.BaseDelay, cfg.Retry.MaxDelay = time.Hour, 24*time.Hour
	err := s.prepare(cfg, counting(new(tally)), nil).Run(t.Context())
	if !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), "Retention") {
		t.Errorf("Run = %v, want ErrConfig that names the retention", err)
	}
}

func TestRunWithoutStreamsSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := bareSystem(t)
	err := s.prepare(config(), counting(new(tally)), nil).Run(t.Context())
	for _, want := range []string{s.bus.Names().EventsStream(), s.bus.Names().Bucket("dedup")} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v, want it to name %s", err, want)
		}
	}
}
