package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// unsettled counts in how many rounds, of [maxRuns] runs each, an event found
// its state changed every time. Where many write the same that happens, and
// costs no attempt; but an event that never gets through must not loop for ever.
type unsettled struct {
	mu     sync.Mutex
	rounds map[event.EventKey]int
}

const (
	// shownRounds is from how many rounds on the consumer is not healthy.
	shownRounds = 2
	// freeRounds is after how many rounds each further one is a failed attempt.
	freeRounds = 4
	// maxUnsettled bounds how many events are counted: those that have gone to
	// another process are never heard of again.
	maxUnsettled = 4096
)

// again counts one more round of an event.
func (u *unsettled) again(k event.EventKey) int {
	u.note(k)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rounds[k]++
	return u.rounds[k]
}

// note has an event known whose state is amiss, without counting.
func (u *unsettled) note(k event.EventKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.rounds == nil || len(u.rounds) >= maxUnsettled {
		u.rounds = map[event.EventKey]int{}
	}
	u.rounds[k] += 0
}

// forget ends the count of an event, and reports whether it was the last one.
func (u *unsettled) forget(k event.EventKey) (last bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.rounds) == 0 {
		return false
	}
	delete(u.rounds, k)
	return len(u.rounds) == 0
}

// restless gives an event back whose state others have changed in each of many
// runs: at first without spending an attempt, longer from time to time, then as
// a failure like any other.
func (c *Consumer) restless(ctx context.Context, d *delivery, claim *dedup.Claim, err error) fate {
	n := c.unsettled.again(d.key)
	err = fmt.Errorf("%d rounds of %d runs: %w", n, maxRuns, err)
	if n >= shownRounds {
		c.health.set("state", err)
		c.eventLog(d, c.log.Warn()).Err(err).Msg("state keeps changing, will run again")
	}
	if n > freeRounds {
		return c.fail(ctx, d, claim, err)
	}
	delay := time.Duration((0.5 + rand.Float64()) * float64(staleRetry<<n)) //nolint:gosec // jitter
	return c.release(ctx, d, claim, nil, Released, delay)
}

// quieten says that an event came to an end.
func (c *Consumer) quieten(d *delivery, f fate) {
	switch f.outcome {
	case Handled, Skipped, Duplicate, ParkedNow:
		if c.unsettled.forget(d.key) {
			c.health.clear("state")
		}
	case Busy, Retried, Released, Lost, Dropped, outcomes: // it comes again, or ends elsewhere
	}
}
