package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
)

// Replay sends a letter back to the consumer that failed, and writes on it that it is
// being replayed. See [Queue.Replay].
func (s *Stream) Replay(ctx context.Context, r Ref, o ReplayOptions) (Result, error) {
	number, count, id := 0, 0, ""
	result, err := s.change(ctx, r, func(l *letter) (Status, error) {
		count = l.entry.Count
		m, known, err := s.mark(ctx, l.entry.Consumer, l.entry.EventKey)
		switch {
		case err != nil:
			return Failed, err
		case known && m.State == StateDone && o.DryRun:
			return AlreadyHandled, nil
		case known && m.State == StateDone:
			return s.finish(ctx, l, AlreadyHandled)
		case known && m.underWay() && !o.Force:
			number = m.Replay
			return InProgress, nil
		}
		if err := s.follower().look(ctx, &l.entry); err != nil {
			return Failed, err
		}
		switch {
		case l.entry.Replay != nil && l.entry.Replay.State != ReplayLost && !o.Force:
			number = l.entry.Replay.Number
			return InProgress, nil
		case !known && !o.Force:
			return Refused, fmt.Errorf("%w: %s: the ledger has no mark of it, so nothing tells whether it took effect: name the consumer's database if it has one (--store, --database-url), or --force replays it", ErrRefused, l.entry.ID)
		}
		partitions, err := s.partitions(ctx)
		if err != nil {
			return Failed, err
		}
		target := *l
		if o.To != "" {
			target.entry.Consumer = o.To
		}
		if !o.Force {
			if err := s.requireConsumer(ctx, &target, partitions); err != nil {
				return statusOf(err), err
			}
		}
		if o.DryRun {
			return WouldReplay, nil
		}
		if target.entry.Consumer != l.entry.Consumer {
			var status Status
			if status, l, m, err = s.handOver(ctx, l, o); status != "" {
				return status, err
			}
			id = l.entry.ID
		}
		// A replay must be newer than the one the mark was parked by, else
		// the consumer takes it for an old one and acknowledges it.
		number = max(l.entry.Count, m.Replay+1)
		return s.send(ctx, l, number, partitions, o.By)
	})
	result.Replay, result.count, result.ID = number, count, cmp.Or(id, result.ID)
	return result, err
}

// handOver moves a letter to the consumer that o.To names, and returns it with what the
// ledger knows of it there; or a status if it is not to be replayed.
func (s *Stream) handOver(ctx context.Context, l *letter, o ReplayOptions) (Status, *letter, Mark, error) {
	if err := s.move(ctx, l, o.To, o.By); err != nil {
		return Failed, nil, Mark{}, err
	}
	moved, err := s.find(ctx, entryID(o.To, l.entry.EventKey))
	if err == nil {
		err = s.follower().look(ctx, &moved.entry)
	}
	if err != nil {
		return Failed, nil, Mark{}, err
	}
	m, known, err := s.mark(ctx, o.To, l.entry.EventKey)
	switch {
	case err != nil:
		return Failed, nil, Mark{}, err
	case known && m.State == StateDone:
		status, err := s.finish(ctx, moved, AlreadyHandled)
		return status, nil, Mark{}, err
	case known && m.underWay(), moved.entry.Replay != nil && moved.entry.Replay.State != ReplayLost:
		return InProgress, nil, Mark{}, nil
	}
	return "", moved, m, nil
}

// send publishes the replay of a letter, and then writes on the letter that it is being
// replayed. In this order, for a letter that says so and is not would wait for ever. Of
// two that send at once, one has sent it and the other finds it in progress. Once begun
// it does not end with ctx.
func (s *Stream) send(ctx context.Context, l *letter, replay, partitions int, by string) (Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cleanUp)
	defer cancel()
	msg, err := redriveMessage(s.names, l, replay, partitions, s.bus.Conn().MaxPayload())
	var receipt bus.Receipt
	if err == nil {
		receipt, err = s.publish(ctx, msg)
	}
	if err != nil {
		return Failed, fmt.Errorf("dlq: replay %s: %w", l.entry.ID, err)
	}
	r := Replaying{Number: replay, At: time.Now().UTC(), By: by, sequence: receipt.Sequence}
	err = s.rewrite(ctx, l, func(p *packer) error { return p.must(headerReplayed, r.header()) })
	switch {
	case errors.Is(err, bus.ErrConflict):
		// Written by somebody else, or the event has ended already.
	case errors.Is(err, bus.ErrStreamFull), errors.Is(err, bus.ErrTooLarge):
		// No room to say it. The letter looks as before until its consumer removes it.
	case err != nil:
		return Failed, fmt.Errorf("dlq: %s is replayed, but its letter does not say so: %w", l.entry.ID, err)
	}
	if receipt.Duplicate {
		return InProgress, nil
	}
	return Replayed, nil
}

// TakeBack ends a replay that its consumer has not begun: the letter is as before. See
// [Queue.TakeBack].
func (s *Stream) TakeBack(ctx context.Context, r Ref, o TakeBackOptions) (Result, error) {
	return s.change(ctx, r, func(l *letter) (Status, error) {
		if err := s.follower().look(ctx, &l.entry); err != nil {
			return Failed, err
		}
		replay := l.entry.Replay
		switch {
		case replay == nil:
			return NotReplayed, nil
		case replay.State == ReplayHandled && !o.DryRun:
			return s.finish(ctx, l, AlreadyHandled)
		case replay.State == ReplayHandled:
			return AlreadyHandled, nil
		case replay.State == ReplayRunning, replay.State == ReplayRetrying:
			return InProgress, nil
		case o.DryRun:
			return WouldTakeBack, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cleanUp)
		defer cancel()
		// The ledger first: it decides whether a worker was faster. A letter that says
		// that it is replayed, and a ledger that knows better, are right already.
		taken, err := s.marks.TakeBack(ctx, l.entry.Consumer, l.entry.EventKey, replay.Number)
		switch {
		case err != nil:
			return Failed, fmt.Errorf("dlq: take back %s: %w", l.entry.ID, err)
		case !taken:
			return s.tooLate(ctx, l)
		}
		if err := s.removeReplay(ctx, replay.sequence); err != nil {
			return Failed, err
		}
		err = s.rewrite(ctx, l, func(*packer) error { return nil })
		if err != nil && !errors.Is(err, bus.ErrConflict) {
			return Failed, err
		}
		return TakenBack, nil
	})
}

// tooLate says why the ledger did not let a replay be taken back.
func (s *Stream) tooLate(ctx context.Context, l *letter) (Status, error) {
	m, known, err := s.mark(ctx, l.entry.Consumer, l.entry.EventKey)
	switch {
	case err != nil:
		return Failed, err
	case known && m.State == StateDone:
		return AlreadyHandled, nil
	case known:
		return InProgress, nil
	default:
		return Refused, fmt.Errorf("%w: %s: the ledger has no mark of it, so nothing would keep its consumer from a replay that was sent", ErrRefused, l.entry.ID)
	}
}

// removeReplay deletes a replay from the event stream, so that nobody reads it.
func (s *Stream) removeReplay(ctx context.Context, sequence uint64) error {
	if sequence == 0 {
		return nil
	}
	stream, err := s.bus.Stream(ctx, s.names.EventsStream())
	if err != nil {
		return s.wrap("take back", err)
	}
	err = s.bus.Ask(ctx, "STREAM.MSG.DELETE."+s.names.EventsStream(), func(ctx context.Context) error {
		return stream.DeleteMsg(ctx, sequence)
	})
	if err == nil {
		return nil
	}
	if m, readErr := s.bus.ReadAt(ctx, stream, sequence); readErr == nil && m == nil {
		return nil // gone already
	}
	return s.wrap("take back", err)
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
		}
		if err := s.follower().look(ctx, &l.entry); err != nil {
			return Failed, err
		}
		switch {
		case l.entry.Replay != nil && l.entry.Replay.State == ReplayWaiting && !o.Force:
			return InProgress, nil // to be taken back first
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
		result.Status, result.Err = s.withoutLetter(ctx, r, err)
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

// withoutLetter says what became of an event whose letter is not there, or not the one
// that was named: then somebody else has replayed it meanwhile.
func (s *Stream) withoutLetter(ctx context.Context, r Ref, notFound error) (Status, error) {
	consumer, key, err := parseID(r.ID)
	if err != nil {
		return NotFound, notFound
	}
	if r.Sequence > 0 {
		switch _, err := s.find(ctx, r.ID); {
		case err == nil:
			return InProgress, nil
		case !errors.Is(err, ErrNotFound):
			return Failed, err
		}
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
