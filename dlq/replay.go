package dlq

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"
)

// ReplayOptions say how to replay.
type ReplayOptions struct {
	// DryRun asks the ledger and changes nothing.
	DryRun bool
	// Rate is the most replays a second. Defaults to no limit.
	Rate float64
	// Force replays events that the ledger has no mark of, or says are in
	// progress. Such an event can take effect twice if it did before and its
	// mark has expired. An event that is done is never replayed. Force also
	// stores the replay where no consumer would get it: whoever makes the
	// consumer's durable later does.
	Force bool
}

// Replay sends the selected letters, oldest first, back to the consumer that
// failed and to no other, with their identity, fresh attempts and their
// history, and removes each letter once its event is stored. A letter stays
// while no durable of its consumer would get the replay ([NoConsumer]).
//
// A letter that comes back while Replay runs is not read again. Replaying
// twice, also after a crash or interruption, is harmless: the replay has the
// same message id until the letter is gone, and the ledger knows what is done.
// report, which may be nil, is called for every letter in turn. The error says
// why Replay ended early, by ctx or by what would hit every letter
// ([bus.ErrUnavailable] and the like); the summary counts what was done.
//
// Not guaranteed: order with respect to other events of the same key.
func (q *Queue) Replay(ctx context.Context, s Selection, o ReplayOptions, report func(Result)) (Summary, error) {
	limit := rate.NewLimiter(rate.Inf, 1)
	if o.Rate > 0 {
		limit.SetLimit(rate.Limit(o.Rate))
	}
	return q.walk(ctx, s, report, func(ctx context.Context, stream jetstream.Stream, l *letter) (Status, error) {
		m, known, err := q.mark(ctx, l.entry.Consumer, l.entry.EventKey)
		switch {
		case err != nil:
			return Failed, err
		case known && m.State == StateDone && o.DryRun:
			return AlreadyHandled, nil
		case known && m.State == StateDone:
			return q.finish(ctx, stream, l, AlreadyHandled)
		case known && m.underWay() && !o.Force:
			return InProgress, nil
		case !known && !o.Force:
			return Refused, fmt.Errorf("%w: %s: the ledger has no mark of it, so nothing tells whether it took effect: name the database of a consumer with an inbox, or --force replays it", ErrRefused, l.entry.ID)
		}
		if !o.Force {
			if err := q.taken(ctx, l); err != nil {
				return statusOf(err), err
			}
		}
		if o.DryRun {
			return WouldReplay, nil
		}
		// A replay must be newer than the one the mark was parked by, else
		// the consumer takes it for an old one and acknowledges it.
		replay := max(l.entry.Count, m.Replay+1)
		msg, err := redriveMessage(q.names, l, replay, q.bus.Conn().MaxPayload())
		if err != nil {
			return Failed, fmt.Errorf("dlq: replay %s: %w", l.entry.ID, err)
		}
		select {
		case <-time.After(limit.Reserve().Delay()):
		case <-ctx.Done():
			return Failed, fmt.Errorf("dlq: replay %s: %w", l.entry.ID, ctx.Err())
		}
		// From here to the letter's removal nothing stops half-way.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		pending, err := q.bus.Send(ctx, msg)
		if err == nil {
			_, err = pending.Wait(ctx)
		}
		if err != nil {
			return Failed, fmt.Errorf("dlq: replay %s: %w", l.entry.ID, err)
		}
		return q.finish(ctx, stream, l, Replayed)
	})
}

// finish removes a letter that has done its duty.
func (q *Queue) finish(ctx context.Context, stream jetstream.Stream, l *letter, s Status) (Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if err := q.remove(ctx, stream, l); err != nil {
		return Failed, fmt.Errorf("dlq: %s: %s, but its letter is still there: %w", l.entry.ID, s, err)
	}
	return s, nil
}
