package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/outbox"
)

// begin prepares, and waits for what comes by itself: for leaders as long as the
// bus waits, and as long as need be for a connection that was lost meanwhile. The
// consumer is unhealthy until then. Any other error is a person's to mend.
func (c *Consumer) begin(ctx context.Context, own *share) error {
	for {
		connected := c.bus.Conn().Stats().Reconnects
		var wrong error
		err := c.bus.Await(ctx, func(ctx context.Context) error {
			err := c.prepare(ctx, own)
			switch {
			case err == nil:
			case passes(err):
				c.health.Set(partStart, err)
			default:
				wrong, err = err, nil
			}
			return err
		})
		if wrong != nil {
			return wrong
		}
		if err == nil {
			c.health.Clear(partStart)
			return nil
		}
		lost := c.bus.Conn().IsReconnecting() || c.bus.Conn().Stats().Reconnects != connected
		if ctx.Err() != nil || !lost {
			return err
		}
		c.log.Warn().Err(err).Msg("connection lost while starting, will try again")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(durable.RetryAfter):
		}
	}
}

// retryHorizon is the longest a failed event can take to its last attempt.
func (c *Consumer) retryHorizon() time.Duration {
	return time.Duration(c.cfg.Retry.MaxAttempts-1)*c.cfg.Retry.MaxDelay + c.cfg.Lease
}

// prepare checks what must hold before the first event: the streams are there
// and keep a message longer than its retries, the ledger keeps its marks longer
// than that, and it is known where partitions begin.
func (c *Consumer) prepare(ctx context.Context, own *share) error {
	var errs []error
	var streams []jetstream.StreamConfig
	feeds := c.feeds
	if own != nil {
		feeds = []*feed{{stream: c.bus.Names().EventsStream(), own: true}}
	}
	for _, f := range feeds {
		stream, err := c.bus.Stream(ctx, f.stream)
		if err != nil {
			errs = append(errs, c.noStream(f, err))
			continue
		}
		if age := stream.CachedInfo().Config.MaxAge; age > 0 && age < c.retryHorizon() {
			errs = append(errs, fmt.Errorf("%w: %s: stream %s drops messages after %v, retries take up to %v: raise its max age or lower Retry",
				ErrConfig, c.cfg.Name, f.stream, age, c.retryHorizon()))
		}
		streams = append(streams, stream.CachedInfo().Config)
		if f.durable == nil {
			continue
		}
		if err := f.durable.Bind(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	switch err := c.ledger.Prepare(ctx, c.retryHorizon()); {
	case errors.Is(err, dedup.ErrConfig), errors.Is(err, dedup.ErrNoBucket), errors.Is(err, dedup.ErrNoStream):
		errs = append(errs, fmt.Errorf("%w: %s: %w", ErrConfig, c.cfg.Name, err))
	case err != nil:
		errs = append(errs, fmt.Errorf("consumer: %s: %w", c.cfg.Name, err))
	}
	if wrong := slices.DeleteFunc(slices.Clone(errs), passes); len(wrong) > 0 {
		errs = wrong // waiting mends the others only
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if own != nil {
		if err := own.prepare(ctx); err != nil {
			return err
		}
	}
	for _, stream := range streams {
		c.logRetention(stream)
	}
	return nil
}

// passes reports whether what keeps a consumer from starting may pass by itself.
// Missing tables do no harm to events, as an outage does not, but they do not come
// by themselves.
func passes(err error) bool { return bus.IsOutage(err) && !errors.Is(err, outbox.ErrSchema) }

// noStream says what to do about a stream that cannot be consumed from.
func (c *Consumer) noStream(f *feed, err error) error {
	switch {
	case !errors.Is(err, bus.ErrNoStream):
		return fmt.Errorf("consumer: %s: %w", c.cfg.Name, err)
	case f.own:
		return fmt.Errorf("consumer: %s: %w: create it with `farandole topology apply`, or check the prefix %q", c.cfg.Name, err, c.bus.Names().Prefix)
	}
	return fmt.Errorf("consumer: %s: %w: create it, or correct From", c.cfg.Name, err)
}

// logRetention says at start that the stream keeps events for longer than the
// ledger remembers them: a copy that comes later takes effect again.
func (c *Consumer) logRetention(stream jetstream.StreamConfig) {
	retention := c.ledger.Retention()
	if stream.MaxAge > 0 && stream.MaxAge <= retention {
		return
	}
	keeps := "for ever"
	if stream.MaxAge > 0 {
		keeps = stream.MaxAge.String()
	}
	c.log.Info().Str("stream", stream.Name).Str("stream_keeps", keeps).Stringer("ledger_remembers", retention).
		Msg("the ledger forgets events that the stream still has: a copy that comes later than it remembers takes effect again")
}

// logReady says what the consumer consumes, and how many events wait for it. With
// partitions that is known of a new consumer alone: the owners find the others.
func (c *Consumer) logReady(own *share) {
	of := fmt.Sprintf("%d types", len(c.registry.types))
	if len(c.registry.types) == 1 {
		of = "1 type"
	}
	if c.cfg.From != nil {
		of = fmt.Sprintf("%d subjects of stream %s", len(c.cfg.From.Subjects), c.cfg.From.Name)
	}
	var waiting uint64
	for _, f := range c.feeds {
		waiting += f.durable.Waiting()
	}
	if own != nil {
		waiting = own.old
	}
	text := "ready, consuming " + of
	if own == nil || own.old > 0 {
		text += fmt.Sprintf(", %d waiting", waiting)
	}
	c.log.Info().Msg(text)
}
