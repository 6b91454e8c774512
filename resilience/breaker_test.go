package resilience

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errDown = errors.New("dependency is down")

// newBreaker returns a breaker called gateway, and its transitions so far.
func newBreaker(t *testing.T, cfg BreakerConfig) (*Breaker, func() []Event) {
	t.Helper()
	cfg.Name = "gateway"
	b, err := NewBreaker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var told []Event
	b.Notify(func(tr Transition) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, tr.Event)
	})
	return b, func() []Event {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(told)
	}
}

// call makes one call that ends at once, and says whether it was let through.
func call(b *Breaker, o Outcome) bool {
	p, err := b.Allow()
	if err != nil {
		return false
	}
	p.Done(o, nil)
	return true
}

func calls(b *Breaker, outcomes ...Outcome) {
	for _, o := range outcomes {
		call(b, o)
	}
}

func expectState(t *testing.T, b *Breaker, want State) {
	t.Helper()
	if got := b.State(); got != want {
		t.Fatalf("state %v, want %v; %+v", got, want, b.Stats())
	}
}

// pass lets time pass on the bubble's clock.
func pass(d time.Duration) { <-time.After(d) }

// halfOpen waits until the breaker's time is over.
func halfOpen(t *testing.T, b *Breaker) {
	t.Helper()
	expectState(t, b, Open)
	pass(b.Stats().StaysOpen)
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	t.Parallel()
	b, told := newBreaker(t, BreakerConfig{Failures: 3})
	calls(b, Failure, Failure, Success, Failure, Neutral, Failure)
	expectState(t, b, Closed)
	calls(b, Failure)
	expectState(t, b, Open)
	if call(b, Success) {
		t.Fatal("an open breaker let a call through")
	}
	if got := told(); !slices.Equal(got, []Event{EventFailures}) {
		t.Fatalf("told %v", got)
	}
}

func TestBreakerOpensAtAFailureRateOfTheLastCalls(t *testing.T) {
	t.Parallel()
	b, told := newBreaker(t, BreakerConfig{FailureRate: 0.5, WindowCalls: 6, MinCalls: 4})
	calls(b, Failure, Failure, Failure) // not enough calls to judge
	expectState(t, b, Closed)
	calls(b, Success)
	expectState(t, b, Open)

	b.Close()
	calls(b, Success, Success, Success, Success, Failure, Failure)
	expectState(t, b, Closed) // 2 of 6
	calls(b, Failure)         // 3 of 6: the oldest success has left the window
	expectState(t, b, Open)
	if got := told(); !slices.Equal(got, []Event{EventFailureRate, EventForced, EventFailureRate}) {
		t.Fatalf("told %v", got)
	}
}

func TestBreakerOpensAtAFailureRateOfTheLastTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{FailureRate: 0.6, Window: 10 * time.Second, MinCalls: 5})
		calls(b, Failure, Failure, Failure, Success)
		pass(11 * time.Second) // those have left the window
		calls(b, Failure, Failure, Success, Success)
		expectState(t, b, Closed)
		pass(5 * time.Second)
		calls(b, Failure) // 3 of 5
		expectState(t, b, Open)
	})
}

func TestSlowCallsCountAsFailuresIfAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for slowAfter, want := range map[time.Duration]State{0: Closed, time.Second: Open} {
			b, _ := newBreaker(t, BreakerConfig{Failures: 2, SlowAfter: slowAfter})
			for range 2 {
				p, err := b.Allow()
				if err != nil {
					t.Fatal(err)
				}
				pass(2 * time.Second)
				p.Done(Success, nil)
			}
			expectState(t, b, want)
			if slow := b.Stats().Slow; slow != 2 && want == Open {
				t.Errorf("%d slow calls", slow)
			}
		}
	})
}

func TestBreakerClosesWhenAllProbesHaveSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, told := newBreaker(t, BreakerConfig{Failures: 1, Probes: 3})
		calls(b, Failure)
		halfOpen(t, b)
		calls(b, Success, Success)
		expectState(t, b, HalfOpen)
		calls(b, Success)
		expectState(t, b, Closed)
		if got := told(); !slices.Equal(got, []Event{EventFailures, EventWaited, EventRecovered}) {
			t.Fatalf("told %v", got)
		}
	})
}

func TestFirstFailedProbeReopensForTheFullTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, before := range [][]Outcome{{}, {Success}, {Success, Success}} {
			b, _ := newBreaker(t, BreakerConfig{Failures: 1, Probes: 3, OpenFor: time.Minute})
			calls(b, Failure)
			halfOpen(t, b)
			calls(b, before...)
			calls(b, Failure)
			calls(b, Success, Success, Success)
			if s := b.Stats(); s.State != Open || s.Rejected != 3 {
				t.Fatalf("let through after a failed probe: %+v", s)
			}
			if left := b.Stats().StaysOpen; left < time.Minute {
				t.Fatalf("stays open for %v", left)
			}
			halfOpen(t, b)
			calls(b, Success, Success, Success)
			expectState(t, b, Closed)
		}
	})
}

func TestOnlyProbesRunDuringALongOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{Failures: 5, Probes: 2, OpenFor: time.Second})
		reached, end := 0, time.Now().Add(5*time.Second)
		for time.Now().Before(end) {
			if call(b, Failure) {
				reached++
			}
			pass(time.Millisecond)
		}
		// Five open it; then one probe for each time of 1 s to 1.25 s fails.
		if reached < 5+3 || reached > 5+5 {
			t.Fatalf("%d calls reached the dependency", reached)
		}
	})
}

func TestNeutralProbeGivesItsPermitBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{Failures: 1, Probes: 1})
		calls(b, Failure)
		halfOpen(t, b)
		for range 100 {
			if !call(b, Neutral) {
				t.Fatal("a cancelled probe kept its permit")
			}
		}
		expectState(t, b, HalfOpen)
		calls(b, Success)
		expectState(t, b, Closed)
	})
}

func TestHangingProbeHasATimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, told := newBreaker(t, BreakerConfig{Failures: 1, Probes: 2, ProbeTimeout: 3 * time.Second, OpenFor: time.Second})
		calls(b, Failure)
		halfOpen(t, b)
		hung, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		calls(b, Success)
		pass(3*time.Second - 1)
		expectState(t, b, HalfOpen)
		pass(1)
		synctest.Wait()
		expectState(t, b, Open) // nobody had to call for that
		halfOpen(t, b)
		calls(b, Success)
		hung.Done(Failure, errDown) // too late
		expectState(t, b, HalfOpen)
		calls(b, Success)
		expectState(t, b, Closed)
		if got := told(); !slices.Equal(got, []Event{EventFailures, EventWaited, EventProbeTimeout, EventWaited, EventRecovered}) {
			t.Fatalf("told %v", got)
		}
		if s := b.Stats(); s.Late != 1 || s.Running != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestLateResultsOfAnOlderStateDoNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{Failures: 1, Probes: 2})
		var old []*Permit
		for range 5 {
			p, err := b.Allow()
			if err != nil {
				t.Fatal(err)
			}
			old = append(old, &p)
		}
		calls(b, Failure)
		old[0].Done(Success, nil)
		expectState(t, b, Open)
		halfOpen(t, b)
		calls(b, Success)
		old[1].Done(Success, nil) // would be the second probe
		expectState(t, b, HalfOpen)
		old[2].Done(Failure, errDown) // would reopen
		expectState(t, b, HalfOpen)
		calls(b, Success)
		expectState(t, b, Closed)
		old[3].Done(Failure, errDown) // would open
		expectState(t, b, Closed)
		b.Close() // a forced change outdates permits, too
		old[4].Done(Failure, errDown)
		expectState(t, b, Closed)
	})
}

func TestOnlyTheFirstReportOfAPermitCounts(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 2})
	p, err := b.Allow()
	if err != nil {
		t.Fatal(err)
	}
	p.Done(Failure, errDown)
	p.Done(Failure, errDown)
	expectState(t, b, Closed)
	if s := b.Stats(); s.Failures != 1 || s.Running != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestRejectedCallIsToldWhenToComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{Failures: 1, OpenFor: 8 * time.Second})
		b.Open(10 * time.Second)
		pass(4 * time.Second)
		low, high := false, false
		for range 200 {
			_, err := b.Allow()
			var open *OpenError
			if !errors.Is(err, ErrOpen) || !errors.As(err, &open) {
				t.Fatalf("got %v", err)
			}
			if open.Breaker != "gateway" || open.State != Open || open.StaysOpen != 6*time.Second {
				t.Fatalf("got %+v", open)
			}
			if open.RetryAfter < 6*time.Second || open.RetryAfter > 14*time.Second {
				t.Fatalf("come back after %v", open.RetryAfter)
			}
			low, high = low || open.RetryAfter < 7*time.Second, high || open.RetryAfter > 13*time.Second
		}
		if !low || !high {
			t.Error("the delays are not spread over the whole interval")
		}
		if s := b.Stats(); s.Rejected != 200 {
			t.Errorf("%+v", s)
		}
	})
}

func TestForcedChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, told := newBreaker(t, BreakerConfig{OpenFor: 8 * time.Second, Probes: 1})
		b.Open(0)
		if left := b.Stats().StaysOpen; left < 8*time.Second || left > 10*time.Second {
			t.Fatalf("open for %v", left)
		}
		b.Open(time.Minute)
		pass(time.Minute - 1)
		if call(b, Success) {
			t.Fatal("an open breaker let a call through")
		}
		pass(1)
		calls(b, Success)
		expectState(t, b, Closed)
		calls(b, Failure, Failure, Failure, Failure)
		b.Close()
		calls(b, Failure, Failure, Failure, Failure)
		expectState(t, b, Closed)
		if got := told(); !slices.Equal(got, []Event{EventForced, EventForced, EventWaited, EventRecovered, EventForced}) {
			t.Fatalf("told %v", got)
		}
		if s := b.Stats(); s.Opened != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestListenerMayCallTheBreaker(t *testing.T) {
	t.Parallel()
	b, told := newBreaker(t, BreakerConfig{Failures: 1})
	b.Notify(func(tr Transition) {
		if tr.Event == EventFailures {
			b.Close()
		}
	})
	calls(b, Failure)
	expectState(t, b, Closed)
	if got := told(); !slices.Equal(got, []Event{EventFailures, EventForced}) {
		t.Fatalf("told %v", got)
	}
}

func TestListenerThatPanicsDoesNotSilenceTheOthersForEver(t *testing.T) {
	t.Parallel()
	b, told := newBreaker(t, BreakerConfig{Failures: 1})
	b.Notify(func(tr Transition) {
		if tr.Event == EventFailures {
			panic("listener")
		}
	})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was hidden")
			}
		}()
		calls(b, Failure)
	}()
	b.Close()
	if got := told(); !slices.Equal(got, []Event{EventFailures, EventForced}) {
		t.Fatalf("told %v", got)
	}
}
