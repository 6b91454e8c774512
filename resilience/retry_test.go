package resilience

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestDelaysStayInTheirIntervals(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := RetryConfig{Retries: 1, Jitter: rapid.SampledFrom([]Jitter{FullJitter, EqualJitter, NoJitter}).Draw(t, "jitter")}
		c.BaseDelay = time.Duration(rapid.Int64Range(1, 1<<62).Draw(t, "base"))
		c.MaxDelay = time.Duration(rapid.Int64Range(int64(c.BaseDelay), 1<<62).Draw(t, "most"))
		n := rapid.OneOf(rapid.IntRange(0, 200), rapid.Just(math.MaxInt32), rapid.Just(1<<31)).Draw(t, "n")
		random := rapid.Float64Range(0, 1).Draw(t, "random")
		if d := c.delay(n, random); d < 0 || d > c.MaxDelay {
			t.Fatalf("%v", d)
		}
	})
	c := RetryConfig{BaseDelay: time.Second, MaxDelay: 5 * time.Second}
	for jitter, want := range map[Jitter][2]time.Duration{
		FullJitter: {0, 5 * time.Second}, EqualJitter: {2500 * time.Millisecond, 5 * time.Second}, NoJitter: {5 * time.Second, 5 * time.Second},
	} {
		c.Jitter = jitter
		for _, n := range []int{3, 10, 62, 63, 64, 200, math.MaxInt32} { // at the cap the whole interval is left
			if got := [2]time.Duration{c.delay(n, 0), c.delay(n, 1)}; got != want {
				t.Errorf("%v, retry %d: from %v to %v, want %v", jitter, n, got[0], got[1], want)
			}
		}
	}
}

func TestTwoRetriesAreThreeAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Retry: RetryConfig{Retries: 2, BaseDelay: time.Second, MaxDelay: 10 * time.Second, Jitter: NoJitter}})
		var at []time.Duration
		start := time.Now()
		err := g.Do(t.Context(), func(context.Context) error {
			at = append(at, time.Since(start))
			return errDown
		})
		if !errors.Is(err, errDown) || len(at) != 3 || at[1] != time.Second || at[2] != 3*time.Second {
			t.Fatalf("%v, attempts at %v", err, at)
		}
		if s := g.Stats(); s.Failures != 3 || s.Retry.Retries != 2 || s.Running != 0 || s.Retry.Waiting != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestOnlyFailuresAreRetried(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"not found": &statusError{status: 404}, "cancelled": context.Canceled, "another breaker": &OpenError{},
	} {
		calls := 0
		g := newGuard(t, Config{Retry: RetryConfig{Retries: 5}})
		if got := g.Do(t.Context(), func(context.Context) error { calls++; return err }); !errors.Is(got, err) || calls != 1 {
			t.Errorf("%s: %v after %d calls", name, got, calls)
		}
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for after, want := range map[time.Duration]int{4 * time.Second: 2, 6 * time.Second: 1} {
			g := newGuard(t, Config{Retry: RetryConfig{Retries: 1, MaxDelay: 5 * time.Second}})
			calls, start := 0, time.Now()
			err := g.Do(t.Context(), func(context.Context) error { calls++; return &statusError{status: 503, after: after} })
			if err == nil || calls != want || want == 2 && time.Since(start) < after || want == 1 && time.Since(start) > 0 {
				t.Errorf("Retry-After %v: %d calls in %v, %v", after, calls, time.Since(start), err)
			}
		}
	})
}

func TestNobodyWaitsForARetryThatComesTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Retry: RetryConfig{Retries: 5, BaseDelay: 2 * time.Second, Jitter: NoJitter}})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start, calls := time.Now(), 0
		err := g.Do(ctx, func(context.Context) error { calls++; return errDown })
		if !errors.Is(err, errDown) || calls != 2 || time.Since(start) != 2*time.Second {
			t.Errorf("%d calls in %v, %v", calls, time.Since(start), err)
		}
		stopped, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		start = time.Now()
		if err := g.Do(stopped, func(context.Context) error { return errDown }); !errors.Is(err, errDown) || time.Since(start) != time.Second {
			t.Errorf("cancelled while it waits: %v after %v", err, time.Since(start))
		}
	})
}

func TestRetryThatIsRejectedTellsWhatWasBefore(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 1})
	g := newGuard(t, Config{Breaker: b, Retry: RetryConfig{Retries: 5, BaseDelay: 1, MaxDelay: 1}})
	calls := 0
	err := g.Do(t.Context(), func(context.Context) error { calls++; return errDown })
	if !errors.Is(err, ErrOpen) || !errors.Is(err, errDown) || calls != 1 {
		t.Fatalf("%v after %d calls", err, calls)
	}
}

func TestRetryAfterHeader(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"7": 7 * time.Second, " 7 ": 7 * time.Second, "Sun, 01 Mar 2026 12:00:05 GMT": 5 * time.Second,
		"Sunday, 01-Mar-26 12:00:10 GMT": 10 * time.Second, "Sun, 01 Mar 2026 11:00:00 GMT": 0,
		"": 0, "0": 0, "-5": 0, "soon": 0, "1.5": 0,
		"99999999999999999999": math.MaxInt64 / time.Second * time.Second,
	} {
		if got := RetryAfter(header, now); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}
