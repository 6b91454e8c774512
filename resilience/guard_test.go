package resilience

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// newGuard returns a guard called dependency.
func newGuard(t *testing.T, cfg Config) *Guard {
	t.Helper()
	cfg.Name = "dependency"
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// full is a guard with every policy.
func full(t *testing.T) (*Guard, *Breaker) {
	t.Helper()
	b, _ := newBreaker(t, BreakerConfig{Failures: 3, Probes: 1, OpenFor: 4 * time.Second})
	return newGuard(t, Config{
		Retry: RetryConfig{Retries: 2}, Rate: RateConfig{PerSecond: 50, KeyPerSecond: 10, MaxWait: time.Second},
		Bulkhead: BulkheadConfig{Concurrency: 16, Queue: 32}, Breaker: b, Timeout: 2 * time.Second,
	}), b
}

func TestGuardDescribesItsOrder(t *testing.T) {
	t.Parallel()
	g, _ := full(t)
	const want = "fallback (last good answer, up to 1m0s old) > retry (2, 100ms to 5s, full jitter) > " +
		"rate limit (50/s, burst 50, 10/s a key, burst 10, waits up to 1s) > bulkhead (16 at once, 32 waiting) > " +
		"breaker gateway (3 failures in a row, open for 4s, 1 probes) > timeout (2s) > call"
	if got := LastGood[int](g, time.Minute).Describe(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := newGuard(t, Config{}).Describe(); got != "call" {
		t.Error(got)
	}
}

func TestEachAttemptHasItsOwnTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Timeout: time.Second, Retry: RetryConfig{Retries: 2, BaseDelay: 1, MaxDelay: 1}})
		calls, start := 0, time.Now()
		err := g.Do(t.Context(), func(ctx context.Context) error {
			if calls++; calls == 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if took := time.Since(start).Round(time.Millisecond); err != nil || took != 2*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		err = g.Do(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if s := g.Stats(); s.TimedOut != 5 || s.Failures != 5 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTimeoutIsSmallerThanWhatIsLeftToTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Timeout: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		err := g.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if took := time.Since(start); !errors.Is(err, ErrTimeout) || ctx.Err() != nil || took != 9*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestCallOfACallerWhoseTimeIsOverIsNotMade(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 1})
	g := newGuard(t, Config{Breaker: b, Timeout: time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	err := g.Do(ctx, func(context.Context) error { t.Error("made"); return errDown })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	expectState(t, b, Closed)
}

func TestCallThatWillBeRejectedDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{})
		g := newGuard(t, Config{Breaker: b, Rate: RateConfig{PerSecond: 1, MaxWait: time.Minute}})
		if err := g.Do(t.Context(), nothing); err != nil {
			t.Fatal(err)
		}
		b.Open(time.Hour)
		start := time.Now()
		for range 100 {
			if err := g.Do(t.Context(), nothing); !errors.Is(err, ErrOpen) || time.Since(start) != 0 {
				t.Fatalf("%v after %v", err, time.Since(start))
			}
		}
		if s := g.Stats(); s.BreakerRejected != 100 {
			t.Errorf("%+v", s)
		}
	})
}

func TestCallThatHasWaitedMeetsTheBreakerAsItIsNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{Failures: 1})
		g := newGuard(t, Config{Breaker: b, Bulkhead: BulkheadConfig{Concurrency: 1, Queue: 10}})
		fail := make(chan struct{})
		var callers sync.WaitGroup
		reached := 0
		for range 11 {
			callers.Go(func() {
				err := g.Do(t.Context(), func(context.Context) error { reached++; <-fail; return errDown })
				if !errors.Is(err, ErrOpen) && !errors.Is(err, errDown) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(fail)
		callers.Wait()
		if reached != 1 {
			t.Errorf("%d calls reached the dependency after it had failed", reached)
		}
		if s := g.Stats(); s.Running != 0 || s.Bulkhead.Running != 0 || s.Breaker.Running != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestNothingIsLostOnPanicOrGoexit(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){"panic": func() { panic(errDown) }, "goexit": runtime.Goexit} {
		g, b := full(t)
		b.Open(1)
		for range 5 {
			var value any
			over := make(chan struct{})
			go func() {
				defer close(over)
				defer func() { value = recover() }()
				_, err := LastGood[int](g, time.Hour).Get(t.Context(), func(context.Context) (int, error) { end(); return 0, nil })
				t.Errorf("%s: returned %v", name, err)
			}()
			<-over
			if name == "panic" && value != errDown { //nolint:errorlint // the very value
				t.Errorf("%s: recovered %v", name, value)
			}
		}
		expectState(t, b, HalfOpen) // neither proved nor failed, and the permit is free again
		if s := g.Stats(); s.Running != 0 || s.Bulkhead.Running != 0 || s.Breaker.Running != 0 || s.Neutral != 5 || s.Fallbacks != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		if err := g.Do(t.Context(), nothing); err != nil {
			t.Error(err)
		}
		expectState(t, b, Closed)
	}
}

// A consumer takes these errors for no attempt, and the others for one.
func TestRejectionsSayThatNothingWasAttempted(t *testing.T) {
	t.Parallel()
	open, _ := newBreaker(t, BreakerConfig{})
	open.Open(time.Minute)
	limited := newGuard(t, Config{Rate: RateConfig{PerSecond: 0.1, Burst: 1}})
	if err := limited.Do(t.Context(), nothing); err != nil {
		t.Fatal(err)
	}
	crowded := newGuard(t, Config{Bulkhead: BulkheadConfig{Concurrency: 1}})
	for name, err := range map[string]error{
		"breaker":    newGuard(t, Config{Breaker: open}).Do(t.Context(), nothing),
		"rate limit": limited.Do(t.Context(), nothing),
		"bulkhead":   crowded.Do(t.Context(), func(ctx context.Context) error { return crowded.Do(ctx, nothing) }),
	} {
		var notYet interface{ NotYet() time.Duration }
		if !errors.As(err, &notYet) || notYet.NotYet() <= 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	var notYet interface{ NotYet() time.Duration }
	if err := newGuard(t, Config{}).Do(t.Context(), func(context.Context) error { return errDown }); errors.As(err, &notYet) {
		t.Errorf("a call that failed: %v", err)
	}
}

// Fifty callers at once, through all policies, end in every way that there is.
func TestNothingIsLostInAStorm(t *testing.T) {
	t.Parallel()
	check(t, func(t *rapid.T) {
		s := newStorm(t, BreakerConfig{Failures: 20, OpenFor: time.Second, ProbeTimeout: 3 * time.Second})
		g, err := New(Config{
			Name: "storm", Breaker: s.breaker, Timeout: 2 * time.Second, Retry: RetryConfig{Retries: 1},
			Rate:     RateConfig{PerSecond: 100, KeyPerSecond: 30, MaxWait: time.Second / 2},
			Bulkhead: BulkheadConfig{Concurrency: 10, Queue: 20},
		})
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for i, e := range drawCallers(t, 50) {
			callers.Go(func() {
				defer func() {
					if value := recover(); value != nil && value != e {
						panic(value)
					}
				}()
				ctx, cancel := context.WithCancel(WithKey(context.Background(), string(rune('a'+i%2))))
				defer cancel()
				if e == isCancelled { // while it waits, or while it runs
					time.AfterFunc(time.Duration(i)*20*time.Millisecond, cancel)
				}
				_ = g.Do(ctx, func(ctx context.Context) error { //nolint:errcheck // what it holds is looked at below
					switch e {
					case succeeds:
						return nil
					case fails:
						return errDown
					case panics:
						panic(e)
					default:
						<-ctx.Done()
						return ctx.Err()
					}
				})
			})
		}
		callers.Wait()
		st := g.Stats()
		if st.Running != 0 || st.Retry.Waiting != 0 || st.Rate.Waiting != 0 || st.Bulkhead.Running != 0 || st.Bulkhead.Queued != 0 || st.Breaker.Running != 0 {
			t.Fatalf("something is held: %+v", st)
		}
		if ended := st.Successes + st.Failures + st.Neutral; ended != st.Breaker.Successes+st.Breaker.Failures+st.Breaker.Neutral+st.Breaker.Late {
			t.Fatalf("attempts and reports differ: %+v", st)
		}
	})
}

func TestClassifierCanBeReplaced(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 1})
	g := newGuard(t, Config{Breaker: b, Classify: func(err error) Outcome {
		if errors.Is(err, errDown) {
			return Success
		}
		return Classify(err)
	}})
	for range 10 {
		if err := g.Do(t.Context(), func(context.Context) error { return errDown }); !errors.Is(err, errDown) {
			t.Fatal(err)
		}
	}
	expectState(t, b, Closed)
}

func TestGetReturnsWhatTheLastAttemptReturned(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Retry: RetryConfig{Retries: 3, BaseDelay: 1, MaxDelay: 1}})
	n := 0
	got, err := Get(t.Context(), g, func(context.Context) (int, error) {
		if n++; n < 3 {
			return 0, errDown
		}
		return n, nil
	})
	if got != 3 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	quick, _ := newBreaker(t, BreakerConfig{ProbeTimeout: 2 * time.Second})
	for name, cfg := range map[string]Config{
		"no name":                {},
		"negative retries":       {Name: "x", Retry: RetryConfig{Retries: -1}},
		"cap below base":         {Name: "x", Retry: RetryConfig{Retries: 1, BaseDelay: 2, MaxDelay: 1}},
		"negative base":          {Name: "x", Retry: RetryConfig{Retries: 1, BaseDelay: -1}},
		"unknown jitter":         {Name: "x", Retry: RetryConfig{Jitter: 3}},
		"negative rate":          {Name: "x", Rate: RateConfig{PerSecond: -1}},
		"no number":              {Name: "x", Rate: RateConfig{KeyPerSecond: math.NaN()}},
		"endless rate":           {Name: "x", Rate: RateConfig{PerSecond: math.Inf(1)}},
		"negative burst":         {Name: "x", Rate: RateConfig{PerSecond: 1, Burst: -1}},
		"burst without a rate":   {Name: "x", Rate: RateConfig{Burst: 1}},
		"keys without a rate":    {Name: "x", Rate: RateConfig{PerSecond: 1, MaxKeys: 1}},
		"wait without a rate":    {Name: "x", Rate: RateConfig{MaxWait: 1}},
		"negative concurrency":   {Name: "x", Bulkhead: BulkheadConfig{Concurrency: -1}},
		"queue without bulkhead": {Name: "x", Bulkhead: BulkheadConfig{Queue: 1}},
		"negative timeout":       {Name: "x", Timeout: -1},
		"longer than a probe":    {Name: "x", Timeout: 3 * time.Second, Breaker: quick},
	} {
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
