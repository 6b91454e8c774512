package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// book is what a ledger tells of its marks, whatever its rules are, and what people
// change in them.
type book struct {
	store     store
	retention time.Duration
}

// Retention is how long an event is remembered after its last change.
func (b book) Retention() time.Duration { return b.retention }

// Now is the clock by which the retention is measured. It may be slow by what an
// answer takes to arrive. Errors match [bus.ErrUnavailable], or are the database's.
func (b book) Now(ctx context.Context) (time.Time, error) {
	now, err := b.store.now(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("dedup: time: %w", err)
	}
	return now, nil
}

// Mark returns what is known of an event; false when nothing is, or no longer.
// Errors match [event.ErrInvalidConsumer], [ErrConfig] (the key), [ErrBadMark],
// [ErrNoBucket] or [bus.ErrUnavailable].
func (b book) Mark(ctx context.Context, c event.Consumer, k event.EventKey) (Mark, bool, error) {
	found, err := b.lookUp(ctx, c, k)
	if err != nil {
		return Mark{}, false, fmt.Errorf("dedup: mark of %s.%s: %w", c, k, err)
	}
	if found.record.State == "" {
		return Mark{}, false, nil
	}
	return found.record.mark(found.created), true, nil
}

// Discard says that the dead letter of a parked event is gone for good. The
// event stays parked for whoever delivers it again, but its mark is now
// forgotten after the retention. An event that is not parked is left as it is.
// Errors are those of [KV.Mark] and of [bus.Pending.Wait].
func (b book) Discard(ctx context.Context, c event.Consumer, k event.EventKey) error {
	_, err := b.change(ctx, "discard", c, k, func(r record) (record, bool) {
		return r.ended(stateDiscarded), r.State == stateParked
	})
	return err
}

// TakeBack says that the replays of a parked event up to this one are not to be
// handled any more: one that arrives finds the event parked, as if it were an older one.
// It returns false if the event is not parked: a worker has begun it, or it has ended.
// Errors are those of Discard.
//
// Not guaranteed, with [Partitions]: an owner that has read the replay before does not
// look at the record, and may handle it yet.
func (b book) TakeBack(ctx context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error) {
	return b.change(ctx, "take back", c, k, func(r record) (record, bool) {
		r.Replay = max(r.Replay, replay)
		return r, r.State == stateParked
	})
}

// change writes what a person makes of a record, and says whether it wanted to.
func (b book) change(ctx context.Context, verb string, c event.Consumer, k event.EventKey, of func(record) (record, bool)) (bool, error) {
	for range claimTries {
		found, err := b.lookUp(ctx, c, k)
		if err != nil {
			return false, fmt.Errorf("dedup: %s %s.%s: %w", verb, c, k, err)
		}
		next, wanted := of(found.record)
		if !wanted {
			return false, nil
		}
		_, err = b.store.write(ctx, nil, markKey(c, k), found.revision, next, nil)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, errConflict) {
			return false, fmt.Errorf("dedup: %s %s.%s: %w", verb, c, k, err)
		}
	}
	return false, fmt.Errorf("dedup: %s %s.%s: %w: others keep writing its mark", verb, c, k, bus.ErrConflict)
}

// lookUp reads a mark that a person has named.
func (b book) lookUp(ctx context.Context, c event.Consumer, k event.EventKey) (entry, error) {
	if err := c.Validate(); err != nil {
		return entry{}, err
	}
	for _, char := range []byte(k) {
		if (char < 'a' || char > 'z') && (char < '0' || char > '9') {
			return entry{}, fmt.Errorf("%w: event key %q: want lower-case base32", ErrConfig, k)
		}
	}
	if k == "" {
		return entry{}, fmt.Errorf("%w: no event key", ErrConfig)
	}
	return b.store.read(ctx, markKey(c, k))
}
