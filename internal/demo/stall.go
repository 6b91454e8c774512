package demo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errStalled is returned when a run is given up.
var errStalled = errors.New("demo: nothing happens any more")

// untilStalled returns a context that ends when no order was placed and no event was
// stored for Config.Patience. The run as a whole has no time limit, because it may
// have any number of orders.
func (r *run) untilStalled(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	patience := r.cfg.Patience
	if r.cfg.Rate > 0 {
		patience += time.Duration(float64(time.Second) / r.cfg.Rate)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(min(patience/20, time.Second))
		defer tick.Stop()
		before, since := r.done(), time.Now()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if now := r.done(); now != before {
				before, since = now, time.Now()
			} else if time.Since(since) > patience {
				cancel(fmt.Errorf("%w: not within %v", errStalled, patience))
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// done counts the orders that were placed and the events that were stored.
func (r *run) done() int64 {
	events, _, _ := r.watcher.counts()
	return int64(events) + r.placed.Load()
}
