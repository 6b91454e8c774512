package hopbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/ledger"
)

// ConsumerName is the durable of whatever runs on a stage.
const ConsumerName = "bench"

// DefaultConcurrency is how many handlers run at once: with handlers that do
// not wait for anything, more is no faster.
const DefaultConcurrency = 64

const (
	pollEvery = time.Millisecond
	// stallAfter is how long a run may make no progress.
	stallAfter = 30 * time.Second
)

// Farandole is the runner that is measured: a consumer of this module.
func Farandole(l ledger.Kind, concurrency int) Runner {
	return func(ctx context.Context, s *Stage, n int) error {
		c, err := NewConsumer(s.Bus, l, concurrency, 0)
		if err != nil {
			return err
		}
		running, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()
		err = await(ctx, c, n, ended)
		stop()
		return errors.Join(err, <-ended)
	}
}

// NewConsumer returns a consumer whose handler makes an [Out] of each [In], after it
// has waited as for a database or another service.
func NewConsumer(b *bus.Bus, l ledger.Kind, concurrency int, wait time.Duration) (*consumer.Consumer, error) {
	marks, err := l.Open(b, false, zerolog.Nop())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r := consumer.NewRegistry()
	consumer.Handle(r, In, func(_ context.Context, e event.Event, data Data) (consumer.Step, error) {
		if wait > 0 {
			<-time.After(wait)
		}
		return consumer.Emit(Out.New(event.PartitionKey(e), data)), nil
	})
	return consumer.New(b, r, consumer.Config{Name: ConsumerName, Source: "/" + ConsumerName, Concurrency: concurrency, Ledger: marks})
}

// await waits until c has handled n events.
func await(ctx context.Context, c *consumer.Consumer, n int, ended chan error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	handled, moved := uint64(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("hop: interrupted: %w", context.Cause(ctx))
		case err := <-ended:
			ended <- err // for the one who waits for the end
			return fmt.Errorf("%w: the consumer ended after %d of %d events", ErrStalled, handled, n)
		case now := <-tick.C:
			switch h := c.Stats().Handled; {
			case h >= uint64(n): //nolint:gosec // n is positive
				return nil
			case h > handled:
				handled, moved = h, now
			case now.Sub(moved) > stallAfter:
				return errors.Join(fmt.Errorf("%w: %d of %d events handled, the last %v ago", ErrStalled, handled, n, stallAfter), c.Health())
			}
		}
	}
}
