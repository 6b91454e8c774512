package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// TestCrashLoop lets one event kill each process that runs it, with innocent
// events running beside it the first time.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = time.Second, time.Second
	var runs tally
	var suspects, most atomic.Int32

	// A process in which the killer waits until company, the number of other
	// events beside it, runs; then it takes the process down.
	doomed := func(company int32) {
		p := new(*process)
		var beside atomic.Int32
		crowded, dead := make(chan struct{}), make(chan struct{})
		if company == 0 {
			close(crowded)
		}
		*p = s.prepare(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			if e.ID() == "killer" {
				<-crowded
				(*p).crash()
				close(dead)
				return consumer.Step{}, errCrashed
			}
			if company == 0 {
				return alone(&suspects, &most)
			}
			if beside.Add(1) == company {
				close(crowded)
			}
			<-dead
			return consumer.Step{}, errCrashed
		}), nil)
		(*p).run()
		t.Cleanup(func() {
			if err := (*p).stop(); err != nil {
				t.Error(err)
			}
		})
		<-dead
	}

	innocent := []event.Draft{draft("i-1"), draft("i-2"), draft("i-3"), draft("i-4")}
	events := s.publish(append([]event.Draft{draft("killer")}, innocent...)...)
	doomed(int32(len(innocent)))
	for range cfg.MaxCrashes - 1 {
		doomed(0)
	}
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		return alone(&suspects, &most)
	}), nil)
	l := s.letter()
	s.settled("payment")

	if l.EventID != "killer" || l.Reason != event.ReasonCrashLoop || l.Crashes != cfg.MaxCrashes {
		t.Errorf("letter is of %s, %s after %d crashes; want the killer, %s after %d", l.EventID, l.Reason, l.Crashes, event.ReasonCrashLoop, cfg.MaxCrashes)
	}
	if n := runs.of("killer"); n != cfg.MaxCrashes {
		t.Errorf("the killer ran %d times, want %d", n, cfg.MaxCrashes)
	}
	for _, e := range events[1:] {
		if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Crashes != 1 || m.Failures != 0 {
			t.Errorf("%s is %s after %d crashes and %d failures, want done after one and none", e.ID(), m.State, m.Crashes, m.Failures)
		}
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d suspects ran at once, want 1", n)
	}
	if err := p.Health(); err != nil {
		t.Error(err)
	}
}

// alone is a handler of suspects: it takes a moment and notes how many run at once.
func alone(running, most *atomic.Int32) (consumer.Step, error) {
	n := running.Add(1)
	defer running.Add(-1)
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
	<-time.After(20 * time.Millisecond)
	return consumer.Step{}, nil
}

// TestCrash_costs_a_lease_and_an_error_a_backoff also shows that the long
// life of done marks has nothing to do with either.
func TestCrash_costs_a_lease_and_an_error_a_backoff(t *testing.T) {
	t.Parallel()
	t.Run("crash", func(t *testing.T) {
		t.Parallel()
		g := newGap(t, false)
		g.dieHandling()
		g.finish() // well before the mark of a handled event would be forgotten
		g.wantDone(2, 1)
	})
	t.Run("error", func(t *testing.T) {
		t.Parallel()
		s := newSystem(t)
		cfg := config()
		cfg.Lease = 5 * time.Minute
		var runs tally
		s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			if runs.add(e.ID()) == 1 {
				return consumer.Step{}, errFlaky
			}
			return consumer.Step{}, nil
		}), nil)
		s.publishN(1)
		s.settled("payment") // well before the lease ends
	})
}

// stalled is a worker that ignores its cancellation until it is let go, while
// others take its event over.
type stalled struct {
	*process
	begun, wake chan struct{}
}

func (s *system) stall(cfg consumer.Config, emit string) *stalled {
	s.tb.Helper()
	w := &stalled{begun: make(chan struct{}), wake: make(chan struct{})}
	var runs tally
	w.process = s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add("") == 1 {
			close(w.begun)
			<-w.wake
		}
		return emitting(e, emit), nil
	}), nil)
	return w
}

// emitting is the step of a worker called by.
func emitting(e event.Event, by string) consumer.Step {
	d := paid.New(event.PartitionKey(e), orderData{})
	d.Subject = by
	return consumer.Emit(d)
}

func leaseConfig() consumer.Config {
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = time.Second, 300*time.Millisecond
	return cfg
}

func TestStalled_worker_neither_overwrites_nor_settles(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.stall(leaseConfig(), "a")
	e := s.publishN(1)[0]
	<-a.begun

	cfg := leaseConfig()
	cfg.HandlerTimeout = cfg.Lease
	var runs tally
	taken, result := make(chan struct{}), make(chan error)
	s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) > 1 {
			return emitting(e, "b"), nil
		}
		close(taken)
		return emitting(e, "b"), <-result
	}), nil)
	<-taken
	close(a.wake)
	bustest.Eventually(t, soon, func() bool { return a.Stats().Lost == 1 })
	info, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	if info.NumAckPending != 1 {
		t.Errorf("%d deliveries pending, want the one that b works on", info.NumAckPending)
	}
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "claimed" {
		t.Errorf("mark is %s, want it to be b's claim", m.State)
	}
	result <- errFlaky // a's silence must not have cost b its retry
	s.settled("payment")
	out := s.stored(paid.Type())
	// The retry may have gone to either; the stalled run's event is not there.
	if len(out) != 1 {
		t.Fatalf("%d events emitted, want 1", len(out))
	}
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures != 1 {
		t.Errorf("mark is %s after %d failures, want done after b's one", m.State, m.Failures)
	}
}

// TestHungHandlerIsReportedAndLeftToOthers: a handler that ignores its
// cancellation keeps its slot, but neither its event nor those of its key.
func TestHungHandlerIsReportedAndLeftToOthers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.stall(leaseConfig(), "a")
	first := draft("o-1")
	s.publish(first)
	<-a.begun
	follower := draft("o-2")
	follower.Key = first.Key
	s.publish(follower)
	unhealthy(t, a.process)

	order := make(chan string, 16)
	b := s.start(leaseConfig(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		order <- e.ID()
		return emitting(e, "b"), nil
	}), nil)
	s.settled("payment")
	if err := b.Health(); err != nil {
		t.Error(err)
	}
	if got := []string{<-order, <-order}; !slices.Contains(got, "o-1") || !slices.Contains(got, "o-2") {
		t.Errorf("b ran %v, want both events", got)
	}
	close(a.wake)
	bustest.Eventually(t, soon, a.Health)
	for _, e := range s.stored(paid.Type()) {
		if e.Subject() != "b" {
			t.Errorf("%s was emitted by %s, want b", event.Extension(e, event.ExtCausation), e.Subject())
		}
	}
}

func TestSuspectsOfACrashAreManyAndAllGetThrough(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = time.Second, time.Second
	var running atomic.Int32
	full := make(chan struct{})
	p := s.prepare(cfg, handling(func(ctx context.Context, _ event.Event) (consumer.Step, error) {
		if int(running.Add(1)) == cfg.Concurrency {
			close(full)
		}
		<-ctx.Done()
		return consumer.Step{}, ctx.Err()
	}), nil)
	p.run()
	drafts := make([]event.Draft, 20)
	for i := range drafts {
		drafts[i] = draft(fmt.Sprint("o-", i))
	}
	events := s.publish(drafts...)
	<-full
	p.crash()
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	var runs tally
	s.start(cfg, counting(&runs), nil)
	s.settled("payment")
	runs.wantOnce(t, events)
}
