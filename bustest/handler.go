package bustest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// EventTime is the time of the events that [Event] and [Handle] make.
var EventTime = time.Date(2026, time.January, 2, 15, 4, 5, 0, time.UTC) //nolint:gochecknoglobals // Go has no constants of this type

// EventSource is the source of the events that [Event] makes.
const EventSource = "/test"

// Event seals a draft as an event that a handler might get, the same one each
// time: its id is the draft's ID, or else its Key, its source [EventSource] and
// its time [EventTime]. It fails the test when the draft is not a legal event.
func Event(tb testing.TB, d event.Draft) event.Event {
	tb.Helper()
	id := d.ID
	if id == "" {
		id = string(d.Key)
	}
	e, err := d.Seal(event.Identity{ID: id, Source: EventSource, Time: EventTime})
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	return e
}

// Effects are what handling one event would make durable.
type Effects struct {
	// Events are the outgoing events, in the step's order.
	Events []event.Event
	// Timers are the timers that are set, in the step's order.
	Timers []Timer
	// Cancelled are the timers that are cancelled.
	Cancelled []consumer.TimerID
}

// Timer is a timer that is set.
type Timer struct {
	Name string
	// Due is when it fires, if the handled event was stored at its time attribute.
	Due time.Time
	// Event is what is published then.
	Event event.Event
}

// Handle runs the handler of r for e as the consumer called name would, without
// a server, and returns what it would make durable. Events and timers have
// derived ids and the correlation, causation and trace of e. The time of the
// events is [EventTime]. So a test can compare two runs: a handler that runs
// again for one event has to emit the same.
//
// A panic of the handler is an error that matches [consumer.ErrPanic], as in a
// running consumer. [consumer.Skip] comes back as the error it is. Data that does
// not fit is an error that matches [event.ErrDecode]. An outgoing event that could
// not be published matches [event.ErrInvalidEvent] or [event.ErrInvalidType], and a
// timer that could not be set matches [consumer.ErrTimer]. With an error there
// are no effects: nothing would be stored.
//
// A handler that works in a database gets its transaction by outbox.WithTx(ctx, tx).
//
// Not simulated: retries, deduplication, dead letters and what other services do, for
// which see [World]; the handler timeout.
func Handle(ctx context.Context, r *consumer.Registry, name event.Consumer, e event.Event) (Effects, error) {
	step, err := r.Invoke(ctx, event.Names{}, e)
	if err == nil {
		err = step.Validate()
	}
	if err != nil {
		return Effects{}, err
	}
	return effectsOf(name, e, step, e.Time(), EventTime)
}

// effectsOf is what a step makes durable. Timers count from when the event was stored.
func effectsOf(name event.Consumer, e event.Event, step consumer.Step, stored, now time.Time) (Effects, error) {
	effects := Effects{Events: make([]event.Event, 0, len(step.Events)), Cancelled: step.Cancel}
	for i, draft := range step.Events {
		id := consumer.DerivedIdentity(name, e, i)
		id.Source, id.Time = "/"+string(name), now
		sealed, err := draft.Seal(id)
		if err != nil {
			return Effects{}, fmt.Errorf("bustest: outgoing event %d of %s: %w", i, e.Type(), err)
		}
		effects.Events = append(effects.Events, sealed)
	}
	for _, t := range step.Timers {
		due := stored.Add(t.After)
		id := consumer.TimerIdentity(name, e, t.ID(), due)
		id.Source = "/" + string(name)
		sealed, err := t.Event.Seal(id)
		if err != nil {
			return Effects{}, fmt.Errorf("bustest: timer %s of %s: %w", t.Name, e.Type(), err)
		}
		effects.Timers = append(effects.Timers, Timer{Name: t.Name, Due: due, Event: sealed})
	}
	return effects, nil
}
