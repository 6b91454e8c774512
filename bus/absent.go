package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// absentMemory is how long the reason why nobody answers is good for other
// publishes: thousands may be waiting for it.
const absentMemory = time.Second

// absent finds out why no stream answers a publish: it has no leader, or there
// is none. One publish asks at a time.
type absent struct {
	asking chan struct{} // holds one element while somebody asks
	err    error         // of the last ask that met an outage
	at     time.Time
}

// noStream says why nobody has answered for subject: [ErrUnavailable] if a stream
// stores it, or if that cannot be found out now, else [ErrNoStream].
func (b *Bus) noStream(ctx context.Context, subject string) error {
	select {
	case b.absent.asking <- struct{}{}:
		defer func() { <-b.absent.asking }()
	case <-ctx.Done():
		return fmt.Errorf("%w: no stream has answered: %w", ErrUnavailable, context.Cause(ctx))
	}
	if err := b.absent.err; err != nil && time.Since(b.absent.at) < absentMemory {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, diagnosis)
	defer cancel()
	var name string
	err := b.Ask(ctx, "STREAM.NAMES", func(ctx context.Context) (err error) {
		name, err = b.js.StreamNameBySubject(ctx, subject)
		return err
	})
	switch {
	case err == nil:
		return fmt.Errorf("%w: stream %s has no leader", ErrUnavailable, name)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return ErrNoStream
	case errors.Is(err, ErrDenied) && b.nc.ConnectedClusterName() == "":
		return ErrNoStream // a server on its own has no streams without a leader
	case !errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%w: no stream has answered, and whether there is one cannot be found out: %w", ErrUnavailable, err)
	}
	b.absent.err, b.absent.at = fmt.Errorf("JetStream has no leader: %w", err), time.Now()
	return b.absent.err
}
