package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// inFlight is the set of deliveries that this process holds. One heartbeat keeps
// them alive: at a third of the lease it extends the server's AckWait of each,
// and the ledger's lease of those whose handler runs.
type inFlight struct {
	mu    sync.Mutex
	held  map[*delivery]struct{}
	stuck map[*delivery]struct{} // those whose handler ignores its cancellation
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

// stick notes that d's handler ignores its cancellation.
func (f *inFlight) stick(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, held := f.held[d]; held {
		f.stuck[d] = struct{}{}
	}
}

// err reports handlers that ignore their cancellation.
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

// due lists the deliveries whose last heartbeat is older than age, but for those
// whose last one is still under way: on a machine that cannot keep up, more of
// them would only stand in the way of the work. Each ends with [inFlight.beaten].
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

// beaten ends a heartbeat.
func (f *inFlight) beaten(d *delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.beating = false
}

// heartbeat runs until ctx ends and returns after its last renewals have.
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
				if d.linger() {
					c.inFlight.beaten(d)
					continue
				}
				// Each in its own goroutine: one slow ledger call must not cost the others their lease.
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

// linger extends the AckWait of a delivery whose handler does not run, and
// reports false if it does: then the ledger has to know as well.
func (d *delivery) linger() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim != nil {
		return false
	}
	if !d.settled {
		_ = d.inProgress() //nolint:errcheck // without a connection there is nobody to tell
	}
	return true
}

// renew extends AckWait and lease together; if either fails the handler is
// cancelled, because others may start it any moment. A handler that has
// outrun its timeout is renewed no more: it gets what is left of the lease to
// return, then the event is anybody's, and so are those queued behind it.
func (c *Consumer) renew(ctx context.Context, d *delivery, now time.Time) {
	if d.overdue(now) {
		c.inFlight.stick(d)
		c.suspects.leave(d) // it did not crash; the others need not wait for it
		for _, follower := range c.lanes.stick(d, now) {
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
