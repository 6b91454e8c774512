package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

const (
	restPoll  = 50 * time.Millisecond
	restTwice = 2 // looks in a row that must agree
)

// errRestless is returned when the system does not come to rest in time.
var errRestless = errors.New("demo: the system does not come to rest")

// awaitRest waits until no service has anything to do: nothing undelivered and
// nothing unacknowledged for any durable consumer.
func awaitRest(ctx context.Context, b *bus.Bus) error {
	tick := time.NewTicker(restPoll)
	defer tick.Stop()
	busy := 0
	for calm := 0; calm < restTwice; {
		n, err := openWork(ctx, b)
		switch {
		case err == nil && n == 0:
			busy, calm = 0, calm+1
		case err == nil:
			busy, calm = n, 0
		case ctx.Err() == nil:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d events are open: %w", errRestless, busy, ctx.Err())
		}
	}
	return nil
}

// openWork counts what the durable consumers of the event stream have not settled.
func openWork(ctx context.Context, b *bus.Bus) (int, error) {
	stream, err := b.JetStream().Stream(ctx, b.Names().EventsStream())
	if err != nil {
		return 0, fmt.Errorf("demo: look at consumers: %w", err)
	}
	open := 0
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if isDurable(info) {
			open += int(info.NumPending) + info.NumAckPending //nolint:gosec // small numbers
		}
	}
	if err := list.Err(); err != nil {
		return 0, fmt.Errorf("demo: look at consumers: %w", err)
	}
	return open, nil
}

func isDurable(info *jetstream.ConsumerInfo) bool { return info.Config.Durable != "" }
