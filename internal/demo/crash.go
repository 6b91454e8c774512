package demo

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	crashPoll = 5 * time.Millisecond
	// stalled is how long no event may be seen before the next crash comes anyway.
	stalled = 500 * time.Millisecond
	// down is how long a killed service stays away, at least and at most.
	downMin, downMax = 50 * time.Millisecond, 250 * time.Millisecond
)

// crasher kills services while there is work, spread over the run, and brings
// them back. One is down at a time.
type crasher struct {
	victims []*actor
	each    int // crashes of each victim
	// over is how many events a run has at least; crashes happen on the way there.
	over   int
	events func() int
	random *rand.Rand
	notice func(format string, args ...any)
	// happened is called after each crash.
	happened func()
}

// run returns when all crashes have happened and all services are back.
func (c *crasher) run(ctx context.Context) error {
	var order []*actor
	for range c.each {
		for _, i := range c.random.Perm(len(c.victims)) {
			order = append(order, c.victims[i])
		}
	}
	for i, victim := range order {
		if err := c.await(ctx, c.over*(i+1)/(len(order)+1)); err != nil {
			return err
		}
		away := downMin + time.Duration(c.random.Int64N(int64(downMax-downMin)))
		victim.kill()
		c.happened()
		c.notice("crash: %s killed, its connections cut; back in %d ms", victim.name, away.Milliseconds())
		if err := sleep(ctx, away); err != nil {
			return err
		}
		if err := victim.rise(ctx); err != nil {
			return err
		}
	}
	return nil
}

// await waits for a number of events, or for a stall.
func (c *crasher) await(ctx context.Context, events int) error {
	last, since := c.events(), time.Now()
	for last < events && time.Since(since) < stalled {
		if err := sleep(ctx, crashPoll); err != nil {
			return err
		}
		if n := c.events(); n != last {
			last, since = n, time.Now()
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
