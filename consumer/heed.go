package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/pauses"
)

// byOperator is the reason of the [Hold] that an operator's pause is.
const byOperator = "operator"

// heed follows what operators ask of the consumer, until ctx ends.
func (c *Consumer) heed(ctx context.Context) {
	var over *time.Timer // takes the hold away when its time has come
	stop := func() {
		if over != nil {
			over.Stop()
		}
	}
	defer stop()
	warned := false
	var mu sync.Mutex
	var now *pauses.Pause
	c.pauses.Follow(ctx, c.cfg.Name, func(d pauses.Document) {
		if warned {
			warned = false
			c.log.Info().Msg("pauses of the consumer are seen again")
		}
		mu.Lock()
		defer mu.Unlock()
		if same(now, d.Pause) {
			return
		}
		stop()
		now = d.Pause
		if now == nil {
			c.resume("resumed by an operator")
			return
		}
		// Held at once, and only then asked for how long: that takes a round trip.
		c.Hold(byOperator, Hold{PauseUntil: now.Until})
		left := c.left(ctx, now.Until)
		if left <= 0 {
			c.Release(byOperator)
			return
		}
		c.log.Warn().Time("until", now.Until).Str("by", now.By).Str("why", now.Why).Msg("consumer paused by an operator")
		asked := now
		over = time.AfterFunc(left, func() {
			mu.Lock()
			defer mu.Unlock()
			if now == asked {
				c.resume("the operator's pause is over")
			}
		})
	}, func(err error) {
		if !warned {
			warned = true
			c.log.Warn().Err(err).Msg("pauses of the consumer are not seen: this process goes on as it is until they are")
		}
	})
}

func same(a, b *pauses.Pause) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Until.Equal(b.Until) && a.At.Equal(b.At)
}

func (c *Consumer) resume(why string) {
	c.valve.mu.Lock()
	_, held := c.valve.holds[byOperator]
	c.valve.mu.Unlock()
	if held {
		c.Release(byOperator)
		c.log.Warn().Msg(why)
	}
}

// left is how much of the time until t is left, by the server's clock. While that is
// not known, none of it has passed.
func (c *Consumer) left(ctx context.Context, t time.Time) time.Duration {
	for {
		now, err := c.pauses.Now(ctx)
		if err == nil {
			return t.Sub(now)
		}
		if !backoff.Wait(ctx, backoff.Around(durable.RetryAfter)) {
			return 0
		}
	}
}

// tendPauses has the server deliver nothing from the durables that this process reads
// while it is held, until ctx ends. Every process asks, so it matters to nobody which of
// them dies; the server resumes by itself.
func (c *Consumer) tendPauses(ctx context.Context) {
	asked := map[durableName]time.Time{} // until when this process has paused it
	denied := false
	for ctx.Err() == nil {
		turned, until := c.valve.turned(), c.valve.pauseUntil()
		var again <-chan time.Time
		for _, d := range c.valve.durables() {
			if asked[d].Equal(until) {
				continue
			}
			err := pauseDurable(ctx, c.bus, d, asked[d], until)
			switch {
			case err == nil, errors.Is(err, jetstream.ErrConsumerNotFound):
				asked[d] = until
			case errors.Is(err, bus.ErrDenied):
				asked[d] = until
				if !denied {
					denied = true
					c.log.Warn().Err(err).Msg("the server may not be asked to pause: each process of the consumer holds back by itself")
				}
			default:
				again = time.After(backoff.Around(durable.RetryAfter))
				c.log.Debug().Err(err).Str("durable", d.name).Msg("durable not paused or resumed yet")
			}
		}
		select {
		case <-turned:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// pauseDurable has the server deliver nothing from a durable until a time. What was
// asked for before, by this or another process of the consumer, is taken back if it
// was for longer; what somebody else has asked for is not shortened.
func pauseDurable(ctx context.Context, b *bus.Bus, d durableName, before, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
	defer cancel()
	if before.IsZero() && until.IsZero() {
		return nil
	}
	found, err := durable.Look(ctx, b, d.stream, d.name)
	if err != nil {
		return err
	}
	if found == nil {
		return jetstream.ErrConsumerNotFound
	}
	var has time.Time
	if found.Paused && found.Config.PauseUntil != nil {
		has = *found.Config.PauseUntil
	}
	if has.Equal(until) || has.After(until) && !has.Equal(before) {
		return nil
	}
	return setPause(ctx, b, d, until)
}

// resumeAfter is how far ahead the end of a pause is set that is over: beyond the way of
// the request to the server.
const resumeAfter = 100 * time.Millisecond

// setPause pauses a durable until a time, or resumes it if that has passed, or is zero.
// The server wakes the pulls that wait there when a pause ends by its time, and not
// when it is taken back. So it ends in a moment.
func setPause(ctx context.Context, b *bus.Bus, d durableName, until time.Time) error {
	now, err := b.Clock(d.stream).Now(ctx)
	if err != nil {
		return err
	}
	if ends := now.Add(resumeAfter); until.Before(ends) {
		until = ends
	}
	return b.Ask(ctx, "CONSUMER.PAUSE."+d.stream+"."+d.name, func(ctx context.Context) error {
		_, err := b.JetStream().PauseConsumer(ctx, d.stream, d.name, until)
		return err
	})
}
