package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// park makes the dead letter durable, then the ledger's mark, then ends the
// message's life at the server. final is the attempt that led here, nil if the
// ledger has it. If the letter cannot be stored, the verdict is recorded, the
// message stays pending and is slowly retried, and the consumer is unhealthy.
func (c *Consumer) park(ctx context.Context, d *delivery, claim *dedup.Claim, final *event.Attempt, reason string) result {
	if final != nil {
		final.Reason = reason
	}
	d.told.verdict(reason)
	story := c.story(d, claim, final, reason)
	letter, err := dlq.Letter(c.bus.Names(), d.msg, d.origin(), story, c.bus.Conn().MaxPayload())
	if err == nil {
		err = c.ledger.Park(ctx, claim, final, letter)
	}
	if end, over := c.outrun(d, err); over {
		return end
	}
	if err != nil {
		c.health.Set(partLetters, err)
		c.eventLog(d, c.log.Error()).Err(err).Str("reason", reason).Msg("cannot dead-letter, event stays pending")
		return c.release(ctx, d, claim, final, retried, parkRetry)
	}
	c.health.Clear(partLetters)
	c.doubts.forget(d.key)
	c.eventLog(d, c.log.Warn()).Str("reason", reason).Str("error_text", lastOf(story.Attempts).Error).Msg("dead-lettered")
	return c.term(d, parked, "dead-lettered: "+reason)
}

// story is what the dead letter tells of the event's attempts.
func (c *Consumer) story(d *delivery, claim *dedup.Claim, final *event.Attempt, reason string) dlq.Story {
	attempts, failures := claim.Attempts, claim.Failures
	if final != nil {
		attempts, failures = append(slices.Clone(attempts), *final), failures+1
	}
	return dlq.Story{
		Consumer: c.cfg.Name, Reason: reason, Key: d.key,
		Attempts: attempts, Failures: failures, Crashes: claim.Crashes,
		Host: c.host, Version: c.cfg.Version, At: time.Now().UTC(),
	}
}
