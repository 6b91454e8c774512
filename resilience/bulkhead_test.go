package resilience

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBulkheadBoundsCallsAndQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Bulkhead: BulkheadConfig{Concurrency: 3, Queue: 4}})
		var mu sync.Mutex
		running, most, full := 0, 0, 0
		release := make(chan struct{})
		var callers sync.WaitGroup
		for range 50 {
			callers.Go(func() {
				err := g.Do(t.Context(), func(context.Context) error {
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					<-release
					mu.Lock()
					defer mu.Unlock()
					running--
					return nil
				})
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, ErrFull) {
					full++
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if s := g.Stats(); s.Bulkhead != (BulkheadStats{Running: 3, Queued: 4, Rejected: 43}) || s.Running != 3 {
			t.Errorf("%+v", s)
		}
		close(release)
		callers.Wait()
		if most != 3 || full != 43 {
			t.Errorf("%d at once, %d refused", most, full)
		}
		if s := g.Stats(); s.Bulkhead != (BulkheadStats{Rejected: 43}) || s.Successes != 7 {
			t.Errorf("%+v", s)
		}
	})
}

func TestQueuedCallThatGivesUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Bulkhead: BulkheadConfig{Concurrency: 1, Queue: 1}})
		release, left := make(chan struct{}), make(chan error)
		go func() { left <- g.Do(t.Context(), func(context.Context) error { <-release; return nil }) }()
		synctest.Wait()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := g.Do(ctx, nothing); !errors.Is(err, ErrFull) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
		}
		close(release)
		if err := errors.Join(<-left, g.Do(t.Context(), nothing)); err != nil {
			t.Fatal(err)
		}
	})
}
