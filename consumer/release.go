package consumer

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// release ends the claim and gives the message back. With a failure an attempt is
// spent, without one it is not.
func (c *Consumer) release(ctx context.Context, d *delivery, claim *dedup.Claim, failure *event.Attempt, o outcome, delay time.Duration) result {
	if err := c.ledger.Release(ctx, claim, failure, nil); err != nil {
		return c.unreleased(d, err, o, delay)
	}
	return c.giveBack(d, o, delay)
}

// unreleased gives the message back although the ledger does not know.
func (c *Consumer) unreleased(d *delivery, err error, o outcome, delay time.Duration) result {
	if end, over := c.outrun(d, err); over {
		return end
	}
	c.health.Set(partLedger, err)
	c.eventLog(d, c.log.Error()).Err(err).Msg("claim not released, other workers wait for the end of its lease")
	return c.giveBack(d, o, delay)
}

// leastTimer is the grain of the server's timers.
const leastTimer = time.Second

// deferral is the message that brings d back if it yields, or after a delay that is too
// long to keep its delivery open at the server. It is nil if the delivery stays open:
// because the delay is short, the stream keeps no timers, or the message has no room
// for what a timer needs.
func (c *Consumer) deferral(ctx context.Context, d *delivery, v verdict) *nats.Msg {
	if !v.yields && v.delay <= c.cfg.Retry.DeferAfter {
		return nil
	}
	longest, err := c.schedules.limit(ctx)
	if err == nil && longest > 0 && v.delay >= longest {
		return nil // what would bring it back vanishes before the message itself does
	}
	var now time.Time
	if err == nil {
		now, err = c.now(ctx)
	}
	var later *nats.Msg
	if err == nil {
		later, err = dlq.Deferral(c.bus.Names(), d.msg, d.origin(), dlq.Story{Consumer: c.cfg.Name, Key: d.key},
			now.Add(v.delay), c.bus.Conn().MaxPayload())
	}
	if err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("retry not deferred, the event stays unacknowledged until then")
		return nil
	}
	return later
}

// postpone records a failed attempt together with the message that brings the
// event back, and acknowledges this one. The event holds its key no longer. If
// this delivery comes again nevertheless, it is the retry, too early.
func (c *Consumer) postpone(ctx context.Context, d *delivery, claim *dedup.Claim, failure *event.Attempt, later *nats.Msg, delay time.Duration) result {
	err := c.ledger.Release(ctx, claim, failure, later)
	switch end, over := c.outrun(d, err); {
	case over:
		return end
	case err == nil:
		return c.ack(d, retried)
	case isOutage(err):
		return c.unreleased(d, err, retried, delay)
	}
	c.eventLog(d, c.log.Warn()).Err(err).Msg("retry not deferred, the event stays unacknowledged until then")
	return c.release(ctx, d, claim, failure, retried, delay)
}
