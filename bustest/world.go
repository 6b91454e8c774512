package bustest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// Service is one service of a [World].
type Service struct {
	// Name is its consumer's. Required.
	Name event.Consumer
	// Registry holds its handlers. Required.
	Registry *consumer.Registry
	// Retry is its consumer's policy. Defaults to those of consumer.RetryPolicy.
	Retry consumer.RetryPolicy
	// DB is where its handlers get a transaction (outbox.Tx), which is committed when the
	// handler succeeds, and rolled back when it fails. Defaults to none.
	DB *sql.DB
}

// Letter is an event that has become a dead letter.
type Letter struct {
	Service  event.Consumer
	Event    event.Event
	Reason   string // as in "exhausted"
	Attempts int
	Err      error
}

// World runs services against each other without a server: what one emits, others
// handle. It begins at [EventTime], and time passes only in [World.Advance] and
// [World.Settle]. The events of a key are handled in their order, each once by each
// service; failures are retried as in a consumer, and end as letters.
//
// Not simulated: documents (Step.State), crashes, several replicas, expiry, handler
// timeouts. It is not safe for concurrent use.
type World struct {
	tb       testing.TB
	services []Service
	now      time.Time
	stored   []event.Event
	timers   []timer
	pending  []*delivery
	handled  map[mark]bool
	letters  []Letter
	runs     int
}

// mark says which event which service has been given.
type mark struct {
	service event.Consumer
	event   event.EventKey
}

// timer is one that is set.
type timer struct {
	service event.Consumer
	Timer
}

// delivery is an event that a service has not handled yet.
type delivery struct {
	service  Service
	event    event.Event
	sequence int
	due      time.Time
	stored   time.Time
	failures int
	holds    bool // it has failed, and holds its key
}

// maxRuns ends a World in which events come again for ever.
const maxRuns = 10_000

// NewWorld returns a world with these services.
func NewWorld(tb testing.TB, services ...Service) *World {
	tb.Helper()
	for _, s := range services {
		if err := s.Name.Validate(); err != nil || s.Registry == nil {
			tb.Fatalf("bustest: service %q: want a name and a registry: %v", s.Name, err)
		}
	}
	return &World{tb: tb, services: services, now: EventTime, handled: map[mark]bool{}}
}

// Publish stores drafts as events of somebody else, and runs what is due. The ids are
// the drafts', or else "event-1", "event-2" and so on.
func (w *World) Publish(drafts ...event.Draft) {
	w.tb.Helper()
	for _, d := range drafts {
		id := d.ID
		if id == "" {
			id = fmt.Sprintf("event-%d", len(w.stored)+1)
		}
		e, err := d.Seal(event.Identity{ID: id, Source: EventSource, Time: w.now})
		if err != nil {
			w.tb.Fatalf("bustest: %v", err)
		}
		w.store(e)
	}
	w.run(w.now)
}

// Send stores events as they are, for instance copies of some that are stored, and runs
// what is due.
func (w *World) Send(events ...event.Event) {
	w.tb.Helper()
	for _, e := range events {
		w.store(e)
	}
	w.run(w.now)
}

// Advance lets time pass, and runs timers and retries as they become due.
func (w *World) Advance(d time.Duration) {
	w.tb.Helper()
	w.run(w.now.Add(d))
}

// Settle lets so much time pass that no event waits for a retry. Timers that are due by
// then fire, the others stay.
func (w *World) Settle() {
	w.tb.Helper()
	for len(w.pending) > 0 {
		w.run(w.next().due)
	}
}

// Now is what time it is.
func (w *World) Now() time.Time { return w.now }

// Events are the stored events of some types, of all without one, oldest first.
func (w *World) Events(types ...event.Type) (events []event.Event) {
	for _, e := range w.stored {
		if len(types) == 0 || slices.Contains(types, event.Type(e.Type())) {
			events = append(events, e)
		}
	}
	return events
}

// Letters are the dead letters, oldest first.
func (w *World) Letters() []Letter { return slices.Clone(w.letters) }

// Timers are those that are set and have not fired, in the order of their time.
func (w *World) Timers() []Timer {
	timers := make([]Timer, len(w.timers))
	for i, t := range w.timers {
		timers[i] = t.Timer
	}
	slices.SortStableFunc(timers, func(a, b Timer) int { return a.Due.Compare(b.Due) })
	return timers
}

func (w *World) store(e event.Event) {
	w.stored = append(w.stored, e)
	for _, s := range w.services {
		if !s.Registry.Handles(event.Type(e.Type())) {
			continue
		}
		at := mark{s.Name, event.EventKeyOf(e)}
		if !w.handled[at] {
			w.handled[at] = true
			w.pending = append(w.pending, &delivery{service: s, event: e, sequence: len(w.stored), due: w.now, stored: w.now})
		}
	}
}

// run does all that is due until a time, and lets it be that time.
func (w *World) run(until time.Time) {
	w.tb.Helper()
	for {
		d, t := w.next(), w.nextTimer()
		switch {
		case t != nil && !t.Due.After(until) && (d == nil || t.Due.Before(d.due)):
			w.pass(t.Due)
			e := t.Event
			w.drop(t.service, consumer.TimerID{Name: t.Name, Key: event.PartitionKey(e)})
			w.store(e)
		case d != nil && !d.due.After(until):
			w.pass(d.due)
			w.handle(d)
		default:
			w.pass(until)
			return
		}
	}
}

func (w *World) pass(t time.Time) {
	if t.After(w.now) {
		w.now = t
	}
}

// next is the delivery that runs next, nil if there is none. One that waits behind an
// earlier one of its key is not it.
func (w *World) next() (next *delivery) {
	for _, d := range w.pending {
		behind := slices.ContainsFunc(w.pending, func(x *delivery) bool {
			return x.holds && x.sequence < d.sequence && x.service.Name == d.service.Name &&
				event.PartitionKey(x.event) == event.PartitionKey(d.event)
		})
		if !behind && (next == nil || d.due.Before(next.due) || d.due.Equal(next.due) && d.sequence < next.sequence) {
			next = d
		}
	}
	return next
}

func (w *World) nextTimer() (next *timer) {
	for i := range w.timers {
		if next == nil || w.timers[i].Due.Before(next.Due) {
			next = &w.timers[i]
		}
	}
	return next
}

func (w *World) drop(service event.Consumer, id consumer.TimerID) {
	w.timers = slices.DeleteFunc(w.timers, func(t timer) bool {
		return t.service == service && t.Name == id.Name && event.PartitionKey(t.Event) == id.Key
	})
}

// handle runs the handler of one delivery.
func (w *World) handle(d *delivery) {
	w.tb.Helper()
	if w.runs++; w.runs > maxRuns {
		w.tb.Fatalf("bustest: %d runs of handlers: %s of %s comes again for ever", maxRuns, d.event.Type(), d.service.Name)
	}
	effects, err := w.invoke(d)
	switch {
	case err == nil, errors.Is(err, consumer.Skip):
		w.remove(d)
		w.take(d.service.Name, effects)
		return
	case errors.Is(err, event.ErrInvalidEvent), errors.Is(err, event.ErrInvalidType), errors.Is(err, consumer.ErrTimer):
		err = consumer.Permanent(err)
	}
	a := d.service.Retry.Answer(err, d.failures+1)
	if a.Spent {
		d.failures++
	}
	if a.Reason != "" {
		w.remove(d)
		w.letters = append(w.letters, Letter{d.service.Name, d.event, a.Reason, d.failures, err})
		return
	}
	d.due, d.holds = w.now.Add(a.After), a.HoldsKey
}

func (w *World) remove(d *delivery) {
	w.pending = slices.DeleteFunc(w.pending, func(x *delivery) bool { return x == d })
}

// take makes effects durable.
func (w *World) take(service event.Consumer, effects Effects) {
	for _, e := range effects.Events {
		w.store(e)
	}
	for _, id := range effects.Cancelled {
		w.drop(service, id)
	}
	for _, t := range effects.Timers {
		w.drop(service, consumer.TimerID{Name: t.Name, Key: event.PartitionKey(t.Event)})
		w.timers = append(w.timers, timer{service, t})
	}
}

// invoke runs a handler, in a transaction if its service has a database.
func (w *World) invoke(d *delivery) (effects Effects, err error) {
	ctx := w.tb.Context()
	if db := d.service.DB; db != nil {
		tx, failed := db.BeginTx(ctx, nil)
		if failed != nil {
			w.tb.Fatalf("bustest: begin: %v", failed)
		}
		defer func() {
			end := tx.Commit
			if err != nil {
				end = tx.Rollback
			}
			if ended := end(); ended != nil && !errors.Is(ended, sql.ErrTxDone) {
				w.tb.Fatalf("bustest: end of the transaction: %v", ended)
			}
		}()
		ctx = outbox.WithTx(ctx, tx)
	}
	return w.step(ctx, d)
}

func (w *World) step(ctx context.Context, d *delivery) (Effects, error) {
	w.tb.Helper()
	step, err := d.service.Registry.Invoke(ctx, event.Names{}, d.event)
	if err == nil {
		err = step.Validate()
	}
	if err != nil {
		return Effects{}, err
	}
	if len(step.State) > 0 {
		w.tb.Fatalf("bustest: %s changes documents, which a World does not have: use NewBus", d.service.Name)
	}
	return effectsOf(d.service.Name, d.event, step, d.stored, w.now)
}
