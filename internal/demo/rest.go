package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/outbox"
)

const (
	restPoll  = 50 * time.Millisecond
	restTwice = 2 // looks in a row that must agree
)

// errRestless is returned when the system does not come to rest in time.
var errRestless = errors.New("demo: the system does not come to rest")

// awaitRest waits until no service has anything to do: nothing undelivered and
// nothing unacknowledged for any durable consumer, and nothing unpublished in
// the outbox in db.
func awaitRest(ctx context.Context, b *bus.Bus, db *database.Database) error {
	o, err := db.Outbox(outbox.Config{Names: b.Names()})
	if err != nil {
		return err
	}
	tick := time.NewTicker(restPoll)
	defer tick.Stop()
	var before look
	for calm := 0; calm < restTwice; {
		now, err := lookAt(ctx, b, o)
		switch {
		case err == nil && now.open == 0 && now.last == before.last:
			calm++
		case err == nil && now.open == 0:
			calm = 1
		case err == nil:
			calm = 0
		case ctx.Err() == nil:
			return err
		}
		if err == nil {
			before = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d events are open: %w", errRestless, before.open, context.Cause(ctx))
		}
	}
	return nil
}

// look is what one look at the system saw.
type look struct {
	open int
	// last is the stream's last sequence: while it moves, what was handed from
	// the outbox to the stream may have been missed in both.
	last uint64
}

// lookAt counts what the outbox and the durable consumers of the event stream
// have not settled.
func lookAt(ctx context.Context, b *bus.Bus, o *outbox.Outbox) (l look, err error) {
	s, err := o.Stats(ctx)
	if err != nil {
		return look{}, fmt.Errorf("demo: look at the outbox: %w", err)
	}
	l.open = int(s.Pending + s.Processing)
	stream, err := b.JetStream().Stream(ctx, b.Names().EventsStream())
	if err != nil {
		return look{}, fmt.Errorf("demo: look at the stream: %w", err)
	}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if isDurable(info) {
			l.open += int(info.NumPending) + info.NumAckPending //nolint:gosec // small numbers
		}
	}
	if err := list.Err(); err != nil {
		return look{}, fmt.Errorf("demo: look at consumers: %w", err)
	}
	l.last = stream.CachedInfo().State.LastSeq
	return l, nil
}

func isDurable(info *jetstream.ConsumerInfo) bool { return info.Config.Durable != "" }
