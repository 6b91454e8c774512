package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// publish sends all of out and then waits for all: none is in flight when it returns.
func publish(ctx context.Context, b *bus.Bus, out []*nats.Msg) (err error) {
	var room [4]*bus.Pending
	pending := room[:0]
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

// apart takes the timers out of a step: they are in a stream of their own. Those
// that are set come before the step, for one that is lost would be missed, and
// one of a step that never commits is found stale when it fires. Those that are
// cancelled come after it, for the same reason.
func apart(n event.Names, out []*nats.Msg) (set, rest, cancelled []*nats.Msg) {
	if !slices.ContainsFunc(out, func(m *nats.Msg) bool { return n.IsTimer(m.Subject) }) {
		return nil, out, nil
	}
	for _, m := range out {
		switch {
		case !n.IsTimer(m.Subject):
			rest = append(rest, m)
		case m.Header.Get(jetstream.ScheduleHeader) != "":
			set = append(set, m)
		default:
			cancelled = append(cancelled, m)
		}
	}
	return set, rest, cancelled
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
