package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// fate is how the journey of a delivery ended.
type fate struct {
	outcome Outcome
	// again is when a delivery given back comes again; it holds its key until then.
	again time.Duration
}

// process is the journey of one event (DESIGN.md, "The journey of one event";
// what a crash after each step does is tabulated in "Crash gaps"). ctx ends
// when a shutdown's grace is over: it cancels the handler, never the record of
// what the handler did.
func (c *Consumer) process(ctx context.Context, d *delivery) fate {
	durable := context.WithoutCancel(ctx)

	if c.durables.isDropped(d) {
		return c.dropped(d)
	}
	e, err := c.decode(durable, d) // 1. decode
	if err == nil {
		if f, ok := c.stray(d, e); ok {
			return f
		}
	}
	slot, ok := c.slots.acquire() // one of Concurrency, until the handler has returned
	if !ok {
		return c.giveBack(d, Released, 0) // shutting down
	}
	defer func() { slot.release() }()

	if !c.suspects.enter(d) { // a suspect of a crash runs: nothing is claimed beside it
		return c.giveBack(d, Released, suspectRetry)
	}
	claim, cerr := c.ledger.Claim(durable, d.request(c.cfg)) // 2. claim
	if cerr != nil {
		return c.failClosed(durable, d, nil, "ledger", nil, cerr)
	}
	c.health.clear("ledger")
	if f, away := c.turnAway(durable, d, claim); away {
		return f
	}
	c.suspects.admit(d, c.cfg.Lease/3)

	for runs := 1; ; runs++ {
		var r ran
		if err == nil {
			r, err = c.handle(ctx, d, claim, e) // 3. handle
		}
		slot.release()
		skipped := errors.Is(err, Skip)
		if skipped {
			r.Step, err = Step{}, nil
		}
		var out []*nats.Msg
		if err == nil {
			out, err = c.seal(durable, d, e, r.Step, r.reads)
		}
		if err != nil {
			var void error
			if context.Cause(ctx) == nil && !isOutage(err) { // else it is not the event's fault in any case
				void = r.reads.Confirm(durable, c.ledger)
			}
			if void == nil {
				return c.fail(ctx, d, claim, err)
			}
			err = void // it was made of documents that are not committed, or no longer so
		} else {
			err = c.ledger.Complete(durable, claim, out) // 4. complete
		}
		if errors.Is(err, dedup.ErrStale) && runs < maxRuns {
			if another, ok := c.slots.acquire(); ok {
				slot, err = another, nil
				continue // on the state that is there now
			}
		}
		if err != nil {
			return c.incomplete(ctx, d, claim, out, r.late, err)
		}
		c.health.clear("publish")
		c.health.clear("handler")
		c.doubts.pass(d.key, func() []string { return needsOf(c.bus.Names(), d.eventType, out) })
		return c.ack(d, handledOr(skipped)) // 5. ack
	}
}

// maxRuns is how often a handler runs in a row whose state is changed by
// others each time; then it makes room for other events.
const maxRuns = 16

// turnAway settles a delivery whose handler must not run, or not now.
func (c *Consumer) turnAway(ctx context.Context, d *delivery, claim *dedup.Claim) (fate, bool) {
	switch claim.Status {
	case dedup.Done, dedup.Parked:
		c.doubts.forget(d.key)
		return c.ack(d, Duplicate), true
	case dedup.Busy:
		// Never acknowledged: should the owner fail, this copy is the retry.
		return c.giveBack(d, Busy, min(claim.RetryIn, busyRetry)), true
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
		return c.release(ctx, d, claim, nil, Released, suspectRetry), true
	}
	return fate{}, false
}

// fail is what becomes of an event whose step was not stored because of err.
func (c *Consumer) fail(ctx context.Context, d *delivery, claim *dedup.Claim, err error) fate {
	durable := context.WithoutCancel(ctx)
	switch cause := context.Cause(ctx); {
	case errors.Is(err, errHeartbeat):
		// Others may own the event already; if not, it was not its fault.
		return c.release(durable, d, claim, nil, Lost, 0)
	case cause != nil && !isFinal(err):
		return c.release(durable, d, claim, nil, Released, 0)
	case errors.Is(err, ErrNoTimers):
		return c.failClosed(durable, d, claim, "timers", nil, err)
	case isOutage(err) && wishOf(err) == nil:
		// An outage of what the handler stands on, too, is not the event's fault.
		return c.failClosed(durable, d, claim, "handler", nil, err)
	}
	return c.spend(durable, d, claim, err)
}

// spend records a failed attempt and retries or parks the event.
func (c *Consumer) spend(ctx context.Context, d *delivery, claim *dedup.Claim, err error) fate {
	attempt := c.attempt(claim, err)
	v := decide(err, attempt.Number, c.cfg.Retry, draw(d.key, d.redrive.Replay, attempt.Number, c.cfg.Retry))
	if v.action == park {
		return c.park(ctx, d, claim, &attempt, v.reason)
	}
	c.eventLog(d, c.log.Info()).Err(err).Int(keyAttempt, attempt.Number).Dur("retry_in", v.delay).Msg("handler failed, will retry")
	if later := c.deferral(ctx, d, v.delay); later != nil {
		return c.postpone(ctx, d, claim, &attempt, later, v.delay)
	}
	return c.release(ctx, d, claim, &attempt, Retried, v.delay)
}

// park makes the dead letter durable, then the ledger's mark, then ends the
// message's life at the server. final is the attempt that led here, nil if the
// ledger has it. If the letter cannot be stored the verdict is recorded and
// the message stays pending, slowly retried; the consumer says so.
func (c *Consumer) park(ctx context.Context, d *delivery, claim *dedup.Claim, final *event.Attempt, reason string) fate {
	if final != nil {
		final.Reason = reason
	}
	story := c.story(d, claim, final, reason)
	letter, err := dlq.Letter(c.bus.Names(), d.msg, d.origin(), story, c.bus.Conn().MaxPayload())
	if err == nil {
		err = c.ledger.Park(ctx, claim, final, letter)
	}
	if f, over := c.outrun(d, err); over {
		return f
	}
	if err != nil {
		c.health.set("dlq", err)
		c.eventLog(d, c.log.Error()).Err(err).Str("reason", reason).Msg("cannot dead-letter, event stays pending")
		return c.release(ctx, d, claim, final, Retried, parkRetry)
	}
	c.health.clear("dlq")
	c.doubts.forget(d.key)
	c.eventLog(d, c.log.Warn()).Str("reason", reason).Str("error_text", lastOf(story.Attempts).Error).Msg("dead-lettered")
	c.collect(d)
	if err := d.term("dead-lettered: " + reason); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("term not sent, the redelivery will be acknowledged")
	}
	return fate{outcome: ParkedNow}
}

// incomplete handles a step that could not be made durable. late is why the
// handler was cancelled, if it was, although it has succeeded.
func (c *Consumer) incomplete(ctx context.Context, d *delivery, claim *dedup.Claim, out []*nats.Msg, late, err error) fate {
	durable := context.WithoutCancel(ctx)
	if f, over := c.outrun(d, err); over {
		return f
	}
	switch {
	case errors.Is(err, dedup.ErrStale):
		return c.restless(durable, d, claim, err)
	case c.astray(durable, out, err):
		return c.spend(durable, d, claim, err)
	case isOutage(err):
		return c.failClosed(durable, d, claim, "publish", out, err)
	case late != nil && errors.Is(err, outbox.ErrTransaction):
		err = fmt.Errorf("%w: %w", late, err)
	case errors.Is(err, bus.ErrTooLarge), errors.Is(err, event.ErrInvalidEvent):
		err = Permanent(err) // what it emits can never be stored
	}
	return c.fail(ctx, d, claim, err)
}

// failClosed gives an event back, its attempt unspent, because something the
// journey stands on is missing; the consumer is unhealthy until it works again.
// But what others get meanwhile is not missing: the event is alone in its
// trouble then, which makes nobody else unhealthy, and it does not go on for ever.
func (c *Consumer) failClosed(ctx context.Context, d *delivery, claim *dedup.Claim, part string, out []*nats.Msg, err error) fate {
	delay := time.Duration((0.5 + rand.Float64()) * float64(closedRetry)) //nolint:gosec // jitter
	alone, others := 0, false
	if matches(err, amiss) {
		part = "state"
		c.unsettled.note(d.key)
	}
	if !matches(err, certain) {
		alone, others = c.doubts.fail(d.key, needsOf(c.bus.Names(), d.eventType, out), time.Now())
	}
	switch {
	case !others:
		c.health.set(part, err)
	case alone > maxAlone && claim != nil:
		return c.spend(ctx, d, claim, fmt.Errorf("%w: %w", errAlone, err))
	default:
		delay = backoff(c.cfg.Retry, alone, rand.Float64()) //nolint:gosec // jitter
	}
	c.eventLog(d, c.log.Error()).Err(err).Str("part", part).Int("alone", alone).Msg("event given back")
	if claim == nil {
		return c.giveBack(d, Released, delay)
	}
	return c.release(ctx, d, claim, nil, Released, delay)
}

// release writes the claim's end to the ledger and gives the message back.
func (c *Consumer) release(ctx context.Context, d *delivery, claim *dedup.Claim, failure *event.Attempt, o Outcome, delay time.Duration) fate {
	if err := c.ledger.Release(ctx, claim, failure, nil); err != nil {
		return c.unreleased(d, err, o, delay)
	}
	return c.giveBack(d, o, delay)
}

// unreleased gives the message back although the ledger does not know.
func (c *Consumer) unreleased(d *delivery, err error, o Outcome, delay time.Duration) fate {
	if f, over := c.outrun(d, err); over {
		return f
	}
	c.health.set("ledger", err)
	c.eventLog(d, c.log.Error()).Err(err).Msg("claim not released, other workers wait for the end of its lease")
	return c.giveBack(d, o, delay)
}

// outrun ends the journey of a worker that was overtaken. The event is another
// worker's, and the message must not be settled from here; unless the other
// has brought the event to its end, which makes this copy a duplicate.
func (c *Consumer) outrun(d *delivery, err error) (fate, bool) {
	switch {
	case errors.Is(err, dedup.ErrSettled):
		return c.ack(d, Duplicate), true
	case errors.Is(err, dedup.ErrLeaseLost):
		c.eventLog(d, c.log.Warn()).Err(err).Msg("lease lost, left to its new owner")
		return fate{outcome: Lost, again: c.cfg.Lease}, true
	}
	return fate{}, false
}

func (c *Consumer) giveBack(d *delivery, o Outcome, delay time.Duration) fate {
	if err := d.nak(delay); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("nak not sent, the event waits for its ack wait")
		delay = c.cfg.Lease
	}
	return fate{outcome: o, again: max(delay, time.Millisecond)}
}

func (c *Consumer) ack(d *delivery, o Outcome) fate {
	c.collect(d)
	if err := d.ack(); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("ack not sent, the redelivery will be acknowledged")
	}
	return fate{outcome: o}
}
