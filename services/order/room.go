package order

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

const (
	// roomLimit is how many orders may be under way, of those placed within the last
	// roomAge. It is more than it takes to keep the services busy, and few enough
	// that the last one is final within three seconds at a hundred orders a second.
	roomLimit = 300
	// roomAge is how long an order counts. An older one does not wait for its turn
	// any more, but for a payment provider or for somebody who mends a fault.
	roomAge = time.Minute
	// roomLook is how often at most the orders under way are counted.
	roomLook = 100 * time.Millisecond
	// roomPatience is how long a new order waits for room.
	roomPatience = 2 * time.Second
)

// room bounds how many orders are under way: new ones are taken as others become
// final, so that an order that was taken does not wait for those taken after it.
type room struct {
	limit int
	// count returns how many orders placed since a time are under way; it stops
	// counting at most. It reads the table, which several services may share.
	count func(ctx context.Context, since time.Time, most int) (int, error)

	mu      sync.Mutex
	waiting int
	left    int       // places still free, of those that the last count found
	looked  time.Time // when they were last counted
}

// enter waits for a place. The error is errFull, the context's, or that of count.
func (r *room) enter(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, roomPatience, errFull)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting >= r.limit {
		return errFull
	}
	r.waiting++
	defer func() { r.waiting-- }()
	for full := false; ; full = true {
		if err := r.look(ctx); err != nil {
			if full && errors.Is(context.Cause(ctx), errFull) { // the last of several counts took too long
				return errFull
			}
			return err
		}
		if r.left > 0 {
			r.left--
			return nil
		}
		r.mu.Unlock()
		over := !backoff.Wait(ctx, roomLook)
		r.mu.Lock()
		if over {
			return context.Cause(ctx)
		}
	}
}

// look counts again unless that was done within roomLook. It is called with mu held
// and releases it while it counts; others use the last count meanwhile.
func (r *room) look(ctx context.Context) error {
	now := time.Now()
	if now.Sub(r.looked) < roomLook {
		return nil
	}
	r.looked = now
	r.mu.Unlock()
	n, err := r.count(ctx, now.Add(-roomAge), r.limit)
	r.mu.Lock()
	if err != nil {
		r.looked = time.Time{}
		return err
	}
	r.left = r.limit - n
	return nil
}
