package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// inFlight is the set of deliveries that this process has received and not settled.
// The heartbeat renews each of them every third of the lease: the server's AckWait,
// and also the ledger's lease while the handler runs.
type inFlight struct {
	mu    sync.Mutex
	held  map[*delivery]struct{}
	stuck map[*delivery]struct{} // the handler ignores its cancellation
}

func newInFlight() *inFlight {
	return &inFlight{held: map[*delivery]struct{}{}, stuck: map[*delivery]struct{}{}}
}

func (f *inFlight) add(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[d] = struct{}{}
}

func (f *inFlight) remove(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, d)
	delete(f.stuck, d)
}

// markStuck records that d's handler ignores its cancellation.
func (f *inFlight) markStuck(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, held := f.held[d]; held {
		f.stuck[d] = struct{}{}
	}
}

// err returns an error while handlers ignore their cancellation, else nil.
func (f *inFlight) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.stuck) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w: %d", ErrUnhealthy, errStuck, len(f.stuck))
}

func (f *inFlight) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

// due returns the deliveries whose last renewal began more than age ago. It leaves
// out those whose renewal is still running: on an overloaded machine a second one
// would only add to the load. The caller ends each renewal with [inFlight.beaten].
func (f *inFlight) due(now time.Time, age time.Duration) (ds []*delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range f.held {
		if !d.beating && now.Sub(d.beat) >= age {
			d.beat, d.beating = now, true
			ds = append(ds, d)
		}
	}
	return ds
}

// beaten ends a renewal that [inFlight.due] began.
func (f *inFlight) beaten(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.beating = false
}

// heartbeat renews deliveries until ctx ends. It returns when the last renewal has ended.
func (c *Consumer) heartbeat(ctx context.Context) {
	period := c.cfg.Lease / 3
	tick := time.NewTicker(period / 4)
	defer tick.Stop()
	var renewals sync.WaitGroup
	defer renewals.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, d := range c.inFlight.due(now, period) {
				if d.keepWaiting() {
					c.inFlight.beaten(d)
					continue
				}
				// In its own goroutine: a slow ledger call must not cost other deliveries their lease.
				renewals.Go(func() {
					c.renew(ctx, d, now)
					c.inFlight.beaten(d)
				})
			}
			c.lanes.sweep(now)
			c.doubts.sweep(now)
			c.watchRetries()
		}
	}
}

// keepWaiting extends the AckWait of a delivery whose handler does not run. It
// returns false if the handler runs: then the lease has to be renewed, too.
func (d *delivery) keepWaiting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim != nil {
		return false
	}
	if !d.settled {
		_ = d.inProgress() //nolint:errcheck // the next heartbeat tries again
	}
	return true
}

// renew extends AckWait and lease. If one of them fails it cancels the handler,
// because another replica may start the same event at any moment.
//
// It does not renew a handler that has exceeded its timeout. That handler has the
// rest of its lease to return. Then another replica may take the event, and those
// queued behind it.
func (c *Consumer) renew(ctx context.Context, d *delivery, now time.Time) {
	if d.overdue(now) {
		c.inFlight.markStuck(d)
		c.suspects.leave(d) // it has not crashed the process: other suspects need not wait for it
		for _, follower := range c.lanes.markStuck(d, now) {
			c.finish(follower, c.giveBack(follower, released, stuckRetry))
		}
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled {
		return
	}
	err := d.inProgress()
	if err == nil && d.claim != nil {
		err = c.ledger.Extend(ctx, d.claim)
	}
	if err != nil && d.cancel != nil {
		c.log.Warn().Err(err).Str(keyEventKey, string(d.key)).Msg("heartbeat failed, handler cancelled")
		d.cancel(errHeartbeat)
	}
}
