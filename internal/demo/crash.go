package demo

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

const (
	crashPoll = 5 * time.Millisecond
	// stalled is how long without a new event the next crash waits for its turn.
	stalled = 500 * time.Millisecond
	// A killed service stays down for a random time between these two.
	downMin, downMax = 50 * time.Millisecond, 250 * time.Millisecond
)

// crasher kills services and starts them again, one after another. The crashes are
// spread over the run: each comes after a certain number of events.
type crasher struct {
	victims []*supervisor
	each    int // how often each victim is killed
	// over is the least number of events of a run, over which the crashes are spread.
	over   int
	events func() int
	random *rand.Rand
	notice func(format string, args ...any)
	// happened is called after each crash.
	happened func()
}

// run returns when all crashes have happened and all services are back.
func (c *crasher) run(ctx context.Context) error {
	var order []*supervisor
	for range c.each {
		for _, i := range c.random.Perm(len(c.victims)) {
			order = append(order, c.victims[i])
		}
	}
	for i, victim := range order {
		if err := awaitCount(ctx, c.events, c.over*(i+1)/(len(order)+1), stalled); err != nil {
			return err
		}
		away := downMin + time.Duration(c.random.Int64N(int64(downMax-downMin)))
		victim.kill()
		c.happened()
		c.notice("crash: %s killed, its connections cut; back in %d ms", victim.name, away.Milliseconds())
		if !backoff.Wait(ctx, away) {
			return ctx.Err()
		}
		if err := victim.startService(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitCount waits until count has come so far, or has stayed the same for a while.
func awaitCount(ctx context.Context, count func() int, goal int, stalled time.Duration) error {
	last, since := count(), time.Now()
	for last < goal && time.Since(since) < stalled {
		if !backoff.Wait(ctx, crashPoll) {
			return ctx.Err()
		}
		if n := count(); n != last {
			last, since = n, time.Now()
		}
	}
	return nil
}
