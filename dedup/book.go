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
	for range claimTries {
		found, err := b.lookUp(ctx, c, k)
		if err != nil {
			return fmt.Errorf("dedup: discard %s.%s: %w", c, k, err)
		}
		if found.record.State != stateParked {
			return nil
		}
		_, err = b.store.write(ctx, nil, markKey(c, k), found.revision, found.record.ended(stateDiscarded), nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errConflict) {
			return fmt.Errorf("dedup: discard %s.%s: %w", c, k, err)
		}
	}
	return fmt.Errorf("dedup: discard %s.%s: %w: others keep writing its mark", c, k, bus.ErrConflict)
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
