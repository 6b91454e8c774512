package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// knownKey stands in place of an event key in the mark that holds the subjects of a
// consumer. It cannot be mistaken for one: an event key has 32 characters.
const knownKey event.EventKey = "durable"

// Subjects returns the subjects that were remembered for a consumer, and false if
// there are none. Errors are those of [KV.Mark].
func (b book) Subjects(ctx context.Context, c event.Consumer) ([]string, bool, error) {
	found, err := b.lookUp(ctx, c, knownKey)
	if err != nil {
		return nil, false, fmt.Errorf("dedup: subjects of %s: %w", c, err)
	}
	return found.record.Subjects, found.record.State == stateKnown, nil
}

// Remember adds to the subjects of which a consumer may have handled events. They do
// not expire. When all marks have expired and the durable at the server is gone,
// only they show that the consumer has handled old events. Errors are those of
// [KV.Mark] and of [bus.Pending.Wait].
func (b book) Remember(ctx context.Context, c event.Consumer, subjects []string) error {
	for range claimTries {
		found, err := b.lookUp(ctx, c, knownKey)
		if err != nil {
			return fmt.Errorf("dedup: remember the subjects of %s: %w", c, err)
		}
		known := record{State: stateKnown, Subjects: slices.Compact(slices.Sorted(slices.Values(slices.Concat(found.record.Subjects, subjects))))}
		if found.record.State == stateKnown && slices.Equal(known.Subjects, found.record.Subjects) {
			return nil
		}
		_, err = b.store.write(ctx, nil, markKey(c, knownKey), found.revision, known, nil)
		if err == nil || !errors.Is(err, errConflict) {
			return err
		}
	}
	return fmt.Errorf("dedup: remember the subjects of %s: %w: others keep writing them", c, bus.ErrConflict)
}
