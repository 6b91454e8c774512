package resilience

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func nothing(context.Context) error { return nil }

func TestRateIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Rate: RateConfig{PerSecond: 10, Burst: 5, MaxWait: time.Minute}})
		start := time.Now()
		for range 105 {
			if err := g.Do(t.Context(), nothing); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start).Round(time.Millisecond); took != 10*time.Second {
			t.Fatalf("105 calls took %v", took)
		}
	})
}

func TestCallThatWouldWaitTooLongIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct{ wait, deadline time.Duration }{{0, time.Hour}, {time.Second / 2, time.Hour}, {time.Hour, time.Second / 2}} {
			g := newGuard(t, Config{Rate: RateConfig{PerSecond: 1, MaxWait: tc.wait}})
			ctx, cancel := context.WithTimeout(t.Context(), tc.deadline)
			if err := g.Do(ctx, nothing); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for range 10 { // and does not make those after it wait longer
				err := g.Do(ctx, nothing)
				var limit *LimitError
				if !errors.Is(err, ErrLimited) || !errors.As(err, &limit) || limit.Guard != "dependency" || limit.RetryAfter < time.Second || limit.RetryAfter > 2*time.Second {
					t.Fatalf("%+v: %v", tc, err)
				}
			}
			if time.Since(start) != 0 {
				t.Fatalf("%+v: refused after %v", tc, time.Since(start))
			}
			if s := g.Stats(); s.Rate.Rejected != 10 || s.Successes != 1 {
				t.Fatalf("%+v", s)
			}
			cancel()
		}
	})
}

func TestTokensOfThoseWhoGaveUpAreUsedByOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Rate: RateConfig{PerSecond: 1, KeyPerSecond: 1, MaxWait: time.Minute}})
		if err := g.Do(t.Context(), nothing); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error)
			go func() { gone <- g.Do(ctx, nothing) }()
			synctest.Wait()
			if s := g.Stats(); s.Rate.Waiting != 1 {
				t.Fatalf("%+v", s)
			}
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		start := time.Now()
		if err := g.Do(t.Context(), nothing); err != nil || time.Since(start) > time.Second {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
	})
}

func TestEachKeyHasItsOwnRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Rate: RateConfig{PerSecond: 100, KeyPerSecond: 2}})
		let := func(key string) (n int) {
			for range 10 {
				if g.Do(WithKey(t.Context(), key), nothing) == nil {
					n++
				}
			}
			return n
		}
		if a, b := let("tenant-a"), let("tenant-b"); a != 2 || b != 2 {
			t.Fatalf("%d and %d calls, want 2 each", a, b)
		}
		err := g.Do(WithKey(t.Context(), "tenant-a"), nothing)
		if limit := new(LimitError); !errors.As(err, &limit) || limit.Key != "tenant-a" {
			t.Fatal(err)
		}
		pass(time.Second)
		if a := let("tenant-a"); a != 2 {
			t.Fatalf("%d calls after a second", a)
		}
	})
}

func TestKeysAreBounded(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Rate: RateConfig{KeyPerSecond: 0.001, KeyBurst: 1, MaxKeys: 3}})
	do := func(key string) error { return g.Do(WithKey(t.Context(), key), nothing) }
	for i := range 100 {
		if err := do(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := g.Stats().Rate.Keys; n != 3 {
		t.Fatalf("%d keys", n)
	}
	if err := do("97"); !errors.Is(err, ErrLimited) { // now the one used last
		t.Fatal(err)
	}
	if err := do("new"); err != nil {
		t.Fatal(err)
	}
	if err := do("97"); !errors.Is(err, ErrLimited) {
		t.Fatalf("the key that was used last was forgotten: %v", err)
	}
	if err := do("98"); err != nil {
		t.Fatal("the key that was used least recently was kept")
	}
}

func TestShareOfTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Rate: RateConfig{PerSecond: 90, KeyPerSecond: 90, MaxWait: time.Minute}})
		var n atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				for g.Do(ctx, nothing) == nil {
					n.Add(1)
				}
			})
		}
		rate := func() float64 {
			pass(5 * time.Second) // what has a token already goes by the old share
			before := n.Load()
			pass(10 * time.Second)
			return float64(n.Load()-before) / 10
		}
		for _, share := range []float64{1, 1. / 3, 0.5} {
			g.SetShare(share)
			if got, want := rate(), 90*share; got < 0.9*want || got > 1.1*want {
				t.Errorf("share %v: %v calls a second, want %v", share, got, want)
			}
		}
		stop()
		callers.Wait()
	})
}
