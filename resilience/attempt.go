package resilience

import (
	"context"
	"fmt"
	"time"
)

// attempt is one attempt of a call: what it holds of the guard's policies.
type attempt struct {
	guard  *Guard
	caller context.Context //nolint:containedctx // that of this call alone
	// ctx is the call's own, which ends with its timeout.
	ctx    context.Context //nolint:containedctx // likewise
	cancel context.CancelFunc
	permit Permit
	// reported says that the outcome is known already.
	reported bool
}

// share of what is left to the caller that a call gets at most.
const deadlineShare = 0.9

// enter takes what the call needs, from the outer policies to the inner ones. If it
// returns an error, nothing is held.
func (c *attempt) enter() (err error) {
	g := c.guard
	breaker := g.cfg.Breaker
	if c.caller.Err() != nil {
		return context.Cause(c.caller) // it is not made, so it must not count against the dependency
	}
	if breaker != nil && (g.limiter != nil || g.bulkhead != nil) {
		if err := breaker.look(); err != nil {
			return g.reject(policyBreaker, err)
		}
	}
	if g.limiter != nil {
		if err := g.limiter.wait(c.caller); err != nil {
			return g.reject(policyRate, err)
		}
	}
	if g.bulkhead != nil {
		if err := g.bulkhead.enter(c.caller); err != nil {
			return g.reject(policyBulkhead, err)
		}
	}
	if breaker != nil {
		if c.permit, err = breaker.Allow(); err != nil {
			if g.bulkhead != nil {
				g.bulkhead.leave()
			}
			return g.reject(policyBreaker, err)
		}
	}
	g.running.Add(1)
	c.ctx = c.caller
	if g.cfg.Timeout > 0 {
		c.ctx, c.cancel = context.WithTimeoutCause(c.caller, c.timeout(), ErrTimeout)
	}
	return nil
}

// timeout is the configured one, or less if the caller has less.
func (c *attempt) timeout() time.Duration {
	if deadline, ok := c.caller.Deadline(); ok {
		left := time.Duration(deadlineShare * float64(time.Until(deadline)))
		return min(c.guard.cfg.Timeout, left)
	}
	return c.guard.cfg.Timeout
}

// explain makes the error of a call that outran its timeout match [ErrTimeout].
func (c *attempt) explain(err error) error {
	if err != nil && c.cancel != nil && context.Cause(c.ctx) == ErrTimeout && c.caller.Err() == nil { //nolint:errorlint // it is given above
		c.guard.timeouts.Add(1)
		return fmt.Errorf("%w: %s: %w", ErrTimeout, c.guard.cfg.Name, err)
	}
	return err
}

// outcome says what the call's error means. Whatever the error is, a caller that has
// given up says nothing about the dependency.
func (c *attempt) outcome(err error) Outcome {
	if err != nil && c.caller.Err() == context.Canceled {
		return Neutral
	}
	return c.guard.cfg.Classify(err)
}

// report tells the breaker and the counts how the call ended, the first time.
func (c *attempt) report(o Outcome, err error) {
	if c.reported {
		return
	}
	c.reported = true
	c.guard.ended[o].Add(1)
	c.permit.Done(o, err)
}

// leave reports and gives back what the call holds.
func (c *attempt) leave(o Outcome, err error) {
	c.report(o, err)
	if c.cancel != nil {
		c.cancel()
	}
	if c.guard.bulkhead != nil {
		c.guard.bulkhead.leave()
	}
	c.guard.running.Add(-1)
}
