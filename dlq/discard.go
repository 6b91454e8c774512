package dlq

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// DiscardOptions say how to discard.
type DiscardOptions struct {
	// DryRun changes nothing.
	DryRun bool
	// Force removes letters of events that are in progress; if they fail
	// again, a new letter comes.
	Force bool
}

// Discard closes the selected events in the ledger and removes their letters.
// An interrupted Discard can be run again. report, which may be nil, is called
// for every letter in turn; summary and error are as for [Queue.Replay].
func (q *Queue) Discard(ctx context.Context, s Selection, o DiscardOptions, report func(Result)) (Summary, error) {
	return q.walk(ctx, s, report, func(ctx context.Context, stream jetstream.Stream, l *letter) (Status, error) {
		m, known, err := q.mark(ctx, l.entry.Consumer, l.entry.EventKey)
		switch {
		case err != nil:
			return Failed, err
		case known && m.underWay() && !o.Force:
			return InProgress, nil
		case o.DryRun:
			return WouldDiscard, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		// The mark first: a letter without its mark can be discarded again, a
		// parked mark without its letter would be found by nobody.
		if known && m.State == StateParked {
			if err := q.marks.Discard(ctx, l.entry.Consumer, l.entry.EventKey); err != nil {
				return Failed, fmt.Errorf("dlq: discard %s: %w", l.entry.ID, err)
			}
		}
		return q.finish(ctx, stream, l, Discarded)
	})
}
