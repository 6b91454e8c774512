package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Clock tells a server's time from an answer at most a second old and the
// local time passed since it arrived. It never runs ahead of the server, so no
// lease ends early by it. The local wall clock may show anything.
type Clock struct {
	ask    func(context.Context) (time.Time, error)
	asking singleflight.Group

	mu    sync.Mutex
	said  time.Time // by the server
	heard time.Time // by the local monotonic clock, when the answer was there
}

const (
	// clockKeep is how long one answer is good for.
	clockKeep = time.Second
	// clockTimeout bounds one question, which serves all who wait for it.
	clockTimeout = 5 * time.Second
)

// Clock returns the clock of the server that leads a stream: it stamps what is
// stored there, and publishes what is scheduled there.
func (b *Bus) Clock(stream string) *Clock {
	return &Clock{ask: func(ctx context.Context) (at time.Time, err error) {
		s, err := b.Stream(ctx, stream)
		if err != nil {
			return at, fmt.Errorf("clock: %w", err)
		}
		return s.CachedInfo().TimeStamp, nil
	}}
}

// Now returns the server's time. Errors match [ErrNoStream], [ErrDenied],
// [ErrUnavailable] or [ErrClosed].
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	if t, ok := c.known(); ok {
		return t, nil
	}
	_, err, _ := c.asking.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clockTimeout)
		defer cancel()
		said, err := c.ask(ctx)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said, c.heard = said, time.Now()
		return nil, nil
	})
	if err != nil {
		return time.Time{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said.Add(time.Since(c.heard)), nil
}

func (c *Clock) known() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(c.heard)
	return c.said.Add(since), !c.heard.IsZero() && since < clockKeep
}
