package order

import (
	"context"
	"sync"
	"time"
)

const (
	// roomLimit is how many young orders may be under way: more than the services
	// need to be busy, and few enough that the last one's turn comes within three
	// seconds where a hundred a second are finished.
	roomLimit = 300
	// roomAge is how long an order counts. One that takes longer waits for
	// something else than its turn: a provider, or somebody to mend a fault.
	roomAge = time.Minute
	// roomLook is how often the orders under way are counted.
	roomLook = 100 * time.Millisecond
	// roomPatience is how long a new order waits for room.
	roomPatience = 2 * time.Second
)

// room lets new orders in as others end, so that an order that was taken is not
// kept waiting by those taken after it.
type room struct {
	limit int
	// count says how many orders are under way that were placed since a time, at
	// most some. It is the table's word: several services share it.
	count func(ctx context.Context, since time.Time, most int) (int, error)

	mu      sync.Mutex
	waiting int
	left    int       // of the places that there were
	looked  time.Time // when
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
	for {
		if err := r.look(ctx); err != nil {
			return err
		}
		if r.left > 0 {
			r.left--
			return nil
		}
		r.mu.Unlock()
		select {
		case <-time.After(roomLook):
		case <-ctx.Done():
		}
		r.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// look counts again if the last time is long ago. It is called with mu, which is
// free while it counts: others go by what there was.
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
