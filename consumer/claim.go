package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// claim takes the event for this worker. When it is not to be handled, or not
// now, over is true, and the journey has ended with end.
func (c *Consumer) claim(ctx context.Context, d *delivery) (claim *dedup.Claim, end result, over bool) {
	if !c.suspects.enter(d) {
		return nil, c.giveBack(d, released, suspectRetry), true
	}
	request := dedup.Request{
		Consumer: c.cfg.Name, Key: d.key, Replay: d.redrive.Replay, Redelivered: d.redelivered, Lease: c.cfg.Lease,
	}
	if d.partition != nil {
		request.Tenure, request.Sequence = d.partition.tenure, d.sequence
	}
	claim, err := c.ledger.Claim(ctx, request)
	if end, over = c.outrun(d, err); over { // the partition is another's by now
		return nil, end, true
	}
	if err != nil {
		return nil, c.failClosed(ctx, d, nil, partLedger, nil, err), true
	}
	c.health.Clear(partLedger)
	if end, over = c.turnAway(ctx, d, claim); over {
		return nil, end, true
	}
	c.suspects.admit(d, c.cfg.Lease/3)
	return claim, result{}, false
}

// turnAway settles a delivery whose handler must not run, or not now.
func (c *Consumer) turnAway(ctx context.Context, d *delivery, claim *dedup.Claim) (end result, away bool) {
	switch claim.Status {
	case dedup.Done:
		c.doubts.forget(d.key)
		return c.handled(d, duplicate), true
	case dedup.Parked:
		c.doubts.forget(d.key)
		return c.ack(d, duplicate), true
	case dedup.Busy:
		// Never acknowledged: should the owner fail, this copy is the retry.
		return c.giveBack(d, busy, min(claim.RetryIn, busyRetry)), true
	case dedup.Claimed:
	}
	last := lastOf(claim.Attempts)
	switch {
	case last.Reason != "":
		// Its letter could not be stored last time; the verdict stands.
		return c.park(ctx, d, claim, nil, last.Reason), true
	case claim.Failures >= c.cfg.Retry.MaxAttempts:
		return c.park(ctx, d, claim, nil, event.ReasonExhausted), true
	case claim.Crashes >= c.cfg.MaxCrashes:
		attempt := c.attempt(claim, fmt.Errorf("%w: %d runs", errCrashLoop, claim.Crashes))
		return c.park(ctx, d, claim, &attempt, event.ReasonCrashLoop), true
	case claim.Crashes > 0 && !c.suspects.take(d):
		return c.release(ctx, d, claim, nil, released, suspectRetry), true
	}
	return result{}, false
}

// suspects lets events that were running when a process died run one at a time,
// so that the one which kills the process cannot drag the others along again.
// While a suspect runs, nothing else is claimed: a claim that ends with the
// process counts as a crash of its event, too.
type suspects struct {
	mu sync.Mutex
	// owner is the suspect that runs.
	owner *delivery
	// entering are redeliveries that have begun to claim, and do not know yet
	// whether they are suspects.
	entering map[*delivery]struct{}
	// alone is closed when nothing is entering any more; nil while nobody waits for that.
	alone chan struct{}
}

func newSuspects() *suspects { return &suspects{entering: map[*delivery]struct{}{}} }

// enter reports whether d may claim its event now.
func (s *suspects) enter(d *delivery) bool {
	if !d.redelivered {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != nil {
		return false
	}
	s.entering[d] = struct{}{}
	return true
}

// take gives the place to d if nobody has it.
func (s *suspects) take(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != nil {
		return false
	}
	s.owner = d
	return true
}

// admit ends d's entering. If d has the place it waits, at most so long, until
// the others that are entering have found out that they may not.
func (s *suspects) admit(d *delivery, most time.Duration) {
	s.mu.Lock()
	s.exit(d)
	if s.owner != d || len(s.entering) == 0 {
		s.mu.Unlock()
		return
	}
	alone := make(chan struct{})
	s.alone = alone
	s.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-alone:
	case <-timer.C:
	}
}

// leave takes d out, wherever it is, and frees the place if d has it.
func (s *suspects) leave(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit(d)
	if s.owner == d {
		s.owner, s.alone = nil, nil
	}
}

// exit takes d out of those entering. The caller holds s.mu.
func (s *suspects) exit(d *delivery) {
	delete(s.entering, d)
	if len(s.entering) == 0 && s.alone != nil {
		close(s.alone)
		s.alone = nil
	}
}
