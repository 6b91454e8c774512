package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// knownKey is where a ledger keeps what a consumer has been given: in place of
// an event key, which is always 32 characters long.
const knownKey event.EventKey = "durable"

// Retention is how long an event is remembered after its last change.
func (e *engine) Retention() time.Duration { return e.retention }

// Partitions returns nil: whoever claims an event first has it.
func (e *engine) Partitions() *Partitions { return nil }

// Health returns nil: what these ledgers stand on tells its trouble by itself.
func (e *engine) Health() error { return nil }

// Run waits until ctx ends: there is nothing to do beside the calls.
func (e *engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Now is the clock by which the retention is measured. It may be slow by what an
// answer takes to arrive. Errors match [bus.ErrUnavailable], or are the database's.
func (e *engine) Now(ctx context.Context) (time.Time, error) {
	now, err := e.store.now(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("dedup: time: %w", err)
	}
	return now, nil
}

// Subjects returns what [engine.Remember] was told for a consumer; false if it
// was never told anything. Errors are those of [KV.Mark].
func (e *engine) Subjects(ctx context.Context, c event.Consumer) ([]string, bool, error) {
	found, err := e.lookUp(ctx, c, knownKey)
	if err != nil {
		return nil, false, fmt.Errorf("dedup: subjects of %s: %w", c, err)
	}
	return found.record.Subjects, found.record.State == stateKnown, nil
}

// Remember adds to the subjects of which a consumer may have handled events. It
// keeps them for ever: when all marks are forgotten and the durable at the
// server is gone, this alone tells that old events were handled once. Errors
// are those of [KV.Mark] and of [bus.Pending.Wait].
func (e *engine) Remember(ctx context.Context, c event.Consumer, subjects []string) error {
	for range claimTries {
		found, err := e.lookUp(ctx, c, knownKey)
		if err != nil {
			return fmt.Errorf("dedup: remember the subjects of %s: %w", c, err)
		}
		known := record{State: stateKnown, Subjects: slices.Compact(slices.Sorted(slices.Values(slices.Concat(found.record.Subjects, subjects))))}
		if found.record.State == stateKnown && slices.Equal(known.Subjects, found.record.Subjects) {
			return nil
		}
		_, err = e.store.write(ctx, nil, markKey(c, knownKey), found.revision, known, nil)
		if err == nil || !errors.Is(err, errConflict) {
			return err
		}
	}
	return fmt.Errorf("dedup: remember the subjects of %s: %w: others keep writing them", c, bus.ErrConflict)
}
