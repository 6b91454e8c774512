package resilience

import (
	"context"
	"fmt"
	"sync/atomic"
)

// BulkheadConfig bounds how many calls are under way. The zero value does not.
type BulkheadConfig struct {
	// Concurrency is how many calls may run at once. Defaults to 0: no bound.
	Concurrency int
	// Queue is how many more calls may wait for a place, until their context ends.
	// Defaults to 0: no call waits.
	Queue int
}

func (c BulkheadConfig) validate() error {
	if c.Concurrency < 0 || c.Queue < 0 || c.Queue > 0 && c.Concurrency == 0 {
		return fmt.Errorf("%w: Bulkhead: Concurrency %d, Queue %d: want none negative, and a Queue only with Concurrency", ErrConfig, c.Concurrency, c.Queue)
	}
	return nil
}

// bulkhead is a bounded number of places, and a bounded queue before them.
type bulkhead struct {
	guard  string
	places chan struct{}
	queue  int64
	queued atomic.Int64
}

func newBulkhead(guard string, cfg BulkheadConfig) *bulkhead {
	return &bulkhead{guard: guard, places: make(chan struct{}, cfg.Concurrency), queue: int64(cfg.Queue)}
}

// enter takes a place. Who has one calls leave.
func (b *bulkhead) enter(ctx context.Context) error {
	select {
	case b.places <- struct{}{}:
		return nil
	default:
	}
	if b.queued.Add(1) > b.queue {
		b.queued.Add(-1)
		return &fullError{b.guard, cap(b.places), int(b.queue)}
	}
	defer b.queued.Add(-1)
	select {
	case b.places <- struct{}{}:
		if ctx.Err() == nil {
			return nil
		}
		b.leave() // both were ready
	case <-ctx.Done():
	}
	return fmt.Errorf("%w: %s: %w", ErrFull, b.guard, context.Cause(ctx))
}

func (b *bulkhead) leave() { <-b.places }
