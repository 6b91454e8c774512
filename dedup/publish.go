package dedup

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
)

// publish sends all of out and then waits for all: none is in flight when it returns.
func publish(ctx context.Context, b *bus.Bus, out []*nats.Msg) (err error) {
	pending := make([]*bus.Pending, 0, len(out))
	for _, m := range out {
		p, serr := b.Send(ctx, m)
		if serr != nil {
			err = serr
			break
		}
		pending = append(pending, p)
	}
	for _, p := range pending {
		if _, werr := p.Wait(ctx); werr != nil && err == nil {
			err = werr
		}
	}
	return err
}

// publishMark stores a mark on its own and returns its revision; the error
// matches errConflict when the mark has moved.
func publishMark(ctx context.Context, b *bus.Bus, m *nats.Msg) (uint64, error) {
	pending, err := b.Send(ctx, m)
	if err != nil {
		return 0, err
	}
	receipt, err := pending.Wait(ctx)
	if errors.Is(err, bus.ErrConflict) {
		return 0, fmt.Errorf("%w: %w", errConflict, err)
	}
	return receipt.Sequence, err
}
