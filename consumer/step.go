package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// Step is what handling one event makes durable, all of it once. The zero
// Step is "handled, nothing follows".
type Step struct {
	// Events are the outgoing events, in order. Their ids are derived from
	// the consumer, the causing event and their index, so a handler that runs
	// again must return the same events in the same order.
	Events []event.Draft
	// Timers are events for later, in any order; see [Timer].
	Timers []Timer
	// Cancel ends timers that this consumer has set. A timer that has fired,
	// or was never set, is no error.
	Cancel []TimerID
	// State are changes of documents in the event stream, committed together
	// with the events. They need the ledger [github.com/farandole/farandole/dedup.Partitions].
	State []state.Change
}

// Emit returns the step that sends these events.
func Emit(events ...event.Draft) Step { return Step{Events: events} }

// Validate checks the step's timers. It joins all problems in one error
// matching [ErrTimer]: a name, key or time that cannot be, and a timer that the
// step names twice, because what becomes of it would depend on the order.
func (s Step) Validate() error {
	var errs []error
	seen := map[TimerID]bool{}
	check := func(id TimerID) {
		errs = append(errs, id.validate())
		if seen[id] {
			errs = append(errs, fmt.Errorf("%w: %s of %s is set or cancelled twice in one step", ErrTimer, id.Name, id.Key))
		}
		seen[id] = true
	}
	for _, t := range s.Timers {
		check(t.ID())
		if t.After <= 0 || t.After > MaxTimer {
			errs = append(errs, fmt.Errorf("%w: %s of %s after %v: want more than 0, at most %v", ErrTimer, t.Name, t.Event.Key, t.After, MaxTimer))
		}
	}
	for _, id := range s.Cancel {
		check(id)
	}
	return errors.Join(errs...)
}

// Skip is returned by a handler that has looked at the event and wants nothing
// to follow from it: it is marked done and counted as skipped.
var Skip error = skip{} //nolint:gochecknoglobals // an outcome that reads as a verb: return consumer.Step{}, consumer.Skip

type skip struct{}

func (skip) Error() string { return "consumer: skipped" }

// Final says to package resilience that nothing is wrong with what the handler called.
func (skip) Final() bool { return true }

// Permanent marks err as not worth another attempt: the event is dead-lettered
// at once with reason "permanent". Permanent(nil) is nil.
func Permanent(err error) error { return withWish(permanent, err, 0) }

// RetryAfter asks for the next attempt not before d, as a dependency's
// Retry-After does: after d or the policy's delay, whichever is longer. A
// dependency that says "in a second" all through an outage thus does not use up
// the attempts within seconds. It spends an attempt. Beyond
// [RetryPolicy.DeferAfter] the event gives its place to others meanwhile; d must
// be shorter than what ledger and stream keep. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error { return withWish(retryAfter, err, d) }

// Yield gives the event's key up: what the handler needs is told by another event of
// that key, which has not come yet. The server brings the event back by a timer, after
// d or the policy's delay, whichever is longer, and at least a second. Meanwhile the
// events that were behind it run. It spends an attempt, so that it ends: an event
// whose other one never comes is dead-lettered as "exhausted". Whoever wants to wait
// for longer asks for a longer d. Yield(nil, d) is nil.
func Yield(err error, d time.Duration) error { return withWish(yields, err, d) }

// NotYet says that this was no attempt: what the handler needs is not there, and its
// breaker is open, say. The event comes back after d, as often as need be. No attempt
// is spent, nothing is dead-lettered, and the order of its key is kept as long as it
// would be for a retry. For what another event of the same key will tell, [Yield] is
// the answer: that event would wait behind this one. Any error that has, itself or in its chain, the method
// NotYet() time.Duration means the same. NotYet(nil, d) is nil.
func NotYet(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &notYet{err, d}
}

// notYet is an error that says so.
type notYet struct {
	error
	after time.Duration
}

func (n *notYet) Unwrap() error         { return n.error }
func (n *notYet) NotYet() time.Duration { return n.after }

// notYetOf is when an event comes back that was not attempted; false for another error.
func notYetOf(err error) (after time.Duration, ok bool) {
	var n interface{ NotYet() time.Duration }
	if !errors.As(err, &n) {
		return 0, false
	}
	return max(n.NotYet(), notYetLeast), true
}

// notYetLeast keeps an event that cannot be attempted from coming back at once.
const notYetLeast = 10 * time.Millisecond

// wishKind is what a handler, or the decoding, wants to become of a failed event.
type wishKind int

const (
	permanent wishKind = iota + 1
	retryAfter
	yields
	undecodable
	expired
)

// wish is an error that says so.
type wish struct {
	kind  wishKind
	err   error
	after time.Duration // of retryAfter and yields
}

func (w *wish) Error() string { return w.err.Error() }
func (w *wish) Unwrap() error { return w.err }

// Final and RetryAfter tell package resilience what the handler wants.
func (w *wish) Final() bool               { return w.kind != retryAfter }
func (w *wish) RetryAfter() time.Duration { return w.after }

func withWish(kind wishKind, err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &wish{kind: kind, err: err, after: after}
}

// isFinal reports whether an error says that the event must not run again.
func isFinal(err error) bool {
	w := wishOf(err)
	return w != nil && w.kind != retryAfter && w.kind != yields
}

// wishOf is the wish that an error carries, nil if none.
func wishOf(err error) (w *wish) {
	errors.As(err, &w)
	return w
}
