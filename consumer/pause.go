package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
)

// Pause has all processes of a consumer begin nothing for a while. What runs goes on to
// its end. What they hold stays theirs and spends no attempt. The server resumes by
// itself when the time is over.
type Pause struct {
	// Consumer is who pauses. Required.
	Consumer event.Consumer
	// For is how long, by the server's clock, from now on. Required.
	For time.Duration
	// By is who asks, as in "ops@host". Required.
	By string
	// Why is for people. Defaults to "".
	Why string
}

// Apply stores the pause, which all processes of the consumer follow, also those that
// start later, and has the server deliver nothing to the others. It takes the place of
// an earlier pause. It returns until when, by the server's clock. Errors match [ErrConfig],
// [event.ErrInvalidConsumer], [ErrNoDurable] if the event stream does not know the
// consumer, [bus.ErrNoStream] if there is no bucket of pauses, [bus.ErrDenied],
// [bus.ErrUnavailable] or [bus.ErrClosed].
func (p Pause) Apply(ctx context.Context, b *bus.Bus) (time.Time, error) {
	if p.For <= 0 || p.By == "" {
		return time.Time{}, fmt.Errorf("%w: pause for %v by %q: want more than 0, and who asks", ErrConfig, p.For, p.By)
	}
	store := pauses.New(b)
	var until time.Time
	return until, changePause(ctx, b, p.Consumer, func() error {
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		until = now.Add(p.For).UTC().Truncate(time.Millisecond)
		_, err = store.Update(ctx, p.Consumer, func(d *pauses.Document) bool {
			d.Pause = &pauses.Pause{Until: until, At: now.UTC(), By: p.By, Why: p.Why}
			return true
		})
		return err
	})
}

// Resume ends a consumer's pause before its time. A pause that the open breaker of a
// dependency asks for stays. It returns whether there was one. Errors are those of [Pause.Apply].
func Resume(ctx context.Context, b *bus.Bus, c event.Consumer) (paused bool, err error) {
	store := pauses.New(b)
	err = changePause(ctx, b, c, func() error {
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		_, err = store.Update(ctx, c, func(d *pauses.Document) bool {
			paused = d.Pause != nil && d.Pause.Until.After(now)
			had := d.Pause != nil
			d.Pause = nil
			return had
		})
		return err
	})
	return paused, err
}

// changePause changes what is stored, then what the server knows of the consumer's durables.
func changePause(ctx context.Context, b *bus.Bus, c event.Consumer, change func() error) error {
	wrap := func(err error) error { return fmt.Errorf("consumer: pause of %s: %w", c, err) }
	if err := c.Validate(); err != nil {
		return err
	}
	s, err := survey(ctx, b, c)
	if err != nil {
		return wrap(err)
	}
	durables := s.durables[c]
	if len(durables) == 0 && !s.paged[c] {
		return fmt.Errorf("%w %s on stream %s", ErrNoDurable, c, b.Names().EventsStream())
	}
	if err := change(); err != nil {
		return wrap(err)
	}
	d, err := pauses.New(b).Get(ctx, c)
	if err != nil {
		return wrap(err)
	}
	until := d.HeldUntil()
	var errs []error
	for _, info := range durables {
		// One that is gone has changed its owner, who pauses the next one itself.
		if err := setPause(ctx, b, durableName{info.Stream, info.Name}, until); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return wrap(err)
	}
	return nil
}
