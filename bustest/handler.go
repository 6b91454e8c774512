package bustest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
)

// EventTime is the time of the events that [Event] and [Handle] make.
var EventTime = time.Date(2026, time.January, 2, 15, 4, 5, 0, time.UTC) //nolint:gochecknoglobals // Go has no constants of this type

// EventSource is the source of the events that [Event] makes.
const EventSource = "/test"

// Event seals a draft as an event that a handler might get, the same one each
// time: its id is the draft's ID, or else its Key, its source [EventSource] and
// its time [EventTime]. It fails the test when the draft is not a legal event.
func Event(tb testing.TB, d bus.Draft) bus.Event {
	tb.Helper()
	id := d.ID
	if id == "" {
		id = string(d.Key)
	}
	e, err := d.Seal(bus.Identity{ID: id, Source: EventSource, Time: EventTime})
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	return e
}

// Handle runs the handler of r for e as the consumer called name would, without
// a server, and returns the events that it would emit: with derived ids and the
// correlation, causation and trace of e, but for their time, which is
// [EventTime]. So a handler can be tested for what follows from an event, and
// that running it again emits the same.
//
// A panic of the handler is an error matching [consumer.ErrPanic], as in a
// running consumer; [consumer.Skip] comes back as the error it is; data that
// does not fit is an error matching [bus.ErrDecode]; an outgoing event that
// could not be published one matching [bus.ErrInvalidEvent] or
// [bus.ErrInvalidType]. With an error no events are returned: none would be stored.
//
// Not simulated: retries, the handler timeout, deduplication and dead letters.
func Handle(ctx context.Context, r *consumer.Registry, name bus.Consumer, e bus.Event) ([]bus.Event, error) {
	step, err := r.Invoke(ctx, bus.Names{}, e)
	if err != nil {
		return nil, err
	}
	out := make([]bus.Event, 0, len(step.Events))
	for i, draft := range step.Events {
		id := consumer.DerivedIdentity(name, e, i)
		id.Source, id.Time = "/"+string(name), EventTime
		sealed, err := draft.Seal(id)
		if err != nil {
			return nil, fmt.Errorf("bustest: outgoing event %d of %s: %w", i, e.Type(), err)
		}
		out = append(out, sealed)
	}
	return out, nil
}
