package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
)

// Replay sends a letter back to the consumer that failed, and removes it once
// that is stored. See [Queue.Replay].
func (s *Stream) Replay(ctx context.Context, r Ref, o ReplayOptions) (Result, error) {
	return s.change(ctx, r, func(l *letter) (Status, error) {
		m, known, err := s.mark(ctx, l.entry.Consumer, l.entry.EventKey)
		switch {
		case err != nil:
			return Failed, err
		case known && m.State == StateDone && o.DryRun:
			return AlreadyHandled, nil
		case known && m.State == StateDone:
			return s.finish(ctx, l, AlreadyHandled)
		case known && m.underWay() && !o.Force:
			return InProgress, nil
		case !known && !o.Force:
			return Refused, fmt.Errorf("%w: %s: the ledger has no mark of it, so nothing tells whether it took effect: name the database of a consumer with an inbox, or --force replays it", ErrRefused, l.entry.ID)
		}
		partitions, err := s.partitions(ctx)
		if err != nil {
			return Failed, err
		}
		if !o.Force {
			if err := s.requireConsumer(ctx, l, partitions); err != nil {
				return statusOf(err), err
			}
		}
		if o.DryRun {
			return WouldReplay, nil
		}
		// A replay must be newer than the one the mark was parked by, else
		// the consumer takes it for an old one and acknowledges it.
		replay := max(l.entry.Count, m.Replay+1)
		if err := s.send(ctx, l, replay, partitions); err != nil {
			return Failed, fmt.Errorf("dlq: replay %s: %w", l.entry.ID, err)
		}
		return s.finish(ctx, l, Replayed)
	})
}

// send publishes the replay of a letter. Once begun it does not end with ctx.
func (s *Stream) send(ctx context.Context, l *letter, replay, partitions int) error {
	msg, err := redriveMessage(s.names, l, replay, partitions, s.bus.Conn().MaxPayload())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	pending, err := s.bus.Send(ctx, msg)
	if err == nil {
		_, err = pending.Wait(ctx)
	}
	return err
}

// Discard closes a letter's event in the ledger and removes the letter.
func (s *Stream) Discard(ctx context.Context, r Ref, o DiscardOptions) (Result, error) {
	return s.change(ctx, r, func(l *letter) (Status, error) {
		m, known, err := s.mark(ctx, l.entry.Consumer, l.entry.EventKey)
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
			if err := s.marks.Discard(ctx, l.entry.Consumer, l.entry.EventKey); err != nil {
				return Failed, fmt.Errorf("dlq: discard %s: %w", l.entry.ID, err)
			}
		}
		return s.finish(ctx, l, Discarded)
	})
}

// change reads a letter and does one thing with it. An error of do says which
// of no consumer, refused and failed its status is.
func (s *Stream) change(ctx context.Context, r Ref, do func(*letter) (Status, error)) (Result, error) {
	result := Result{ID: r.ID, Sequence: r.Sequence}
	l, err := s.letter(ctx, r)
	switch {
	case err == nil:
		result.ID, result.Sequence = l.entry.ID, l.entry.Sequence
		result.Status, result.Err = do(l)
	case errors.Is(err, ErrNotFound):
		result.Status, result.Err = s.withoutLetter(ctx, r.ID, err)
	default:
		result.Status, result.Err = Failed, err
	}
	if hopeless(result.Err) {
		return result, result.Err
	}
	return result, nil
}

// hopeless reports an error that every further letter would meet.
func hopeless(err error) bool {
	for _, e := range []error{bus.ErrUnavailable, bus.ErrClosed, bus.ErrNoStream, bus.ErrDenied, bus.ErrStreamFull} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// letter reads the letter that r names.
func (s *Stream) letter(ctx context.Context, r Ref) (*letter, error) {
	if r.Sequence == 0 {
		return s.find(ctx, r.ID)
	}
	l, err := s.read(ctx, r.Sequence)
	if err != nil {
		return nil, err
	}
	l.older = r.older
	return l, nil
}

// withoutLetter says what became of an event that has no letter.
func (s *Stream) withoutLetter(ctx context.Context, id string, notFound error) (Status, error) {
	consumer, key, err := parseID(id)
	if err != nil {
		return NotFound, notFound
	}
	m, known, err := s.mark(ctx, consumer, key)
	switch {
	case err != nil:
		return Failed, err
	case known && m.State == StateDone:
		return AlreadyHandled, nil
	case known && m.underWay():
		return InProgress, nil
	case known && m.State == StateDiscarded:
		return NotFound, fmt.Errorf("%w: it was discarded at %s", notFound, m.At.UTC().Format(time.RFC3339))
	default:
		return NotFound, notFound
	}
}

// finish removes a letter that has done its duty.
func (s *Stream) finish(ctx context.Context, l *letter, done Status) (Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if err := s.remove(ctx, l); err != nil {
		return Failed, fmt.Errorf("dlq: %s: %s, but its letter is still there: %w", l.entry.ID, done, err)
	}
	return done, nil
}

// remove deletes a letter, and older ones of the same event under other
// reasons, by sequence: a letter that came in meanwhile stays.
func (s *Stream) remove(ctx context.Context, l *letter) error {
	stream, err := s.knownStream(ctx)
	if err != nil {
		return err
	}
	for _, sequence := range append(l.older, l.entry.Sequence) {
		if sequence == 0 { // gone already
			continue
		}
		err := s.bus.Ask(ctx, "STREAM.MSG.DELETE."+s.names.DLQStream(), func(ctx context.Context) error {
			return stream.DeleteMsg(ctx, sequence)
		})
		if err == nil {
			continue
		}
		if _, readErr := s.read(ctx, sequence); errors.Is(readErr, ErrNotFound) {
			continue // replaced or removed by somebody else
		}
		return s.wrap("delete letter of "+l.entry.ID, err)
	}
	return nil
}
