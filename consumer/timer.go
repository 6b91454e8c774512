package consumer

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// Timer is an event that the server publishes when its time has come, whether
// or not any consumer is running then. It waits in a stream of its own: it is
// stored before the done mark of the step that returns it, or in the step's
// transaction with outbox.Ledger.
//
// A timer is known by its name and the key of its event. Setting it again
// replaces it; [Step.Cancel] ends it. Its event has a derived id like any
// outgoing event, so a step that runs again sets the same timer for the same
// instant, and an event published twice takes effect once.
//
// # Late and stale timers
//
// A timer that was stored although its step was not (a crash, a lost lease, a
// rerun on newer state that does not set it) fires like any other. A timer whose
// cancellation got lost in a crash right after its step does, too. And a
// timer can fire in the very moment in which it is cancelled or set again;
// its event is then in the stream and will be handled. So a handler of a
// timer's event asks its own state whether the wait that the timer belongs to is
// still on, and returns [Skip] if not. Put into the event what tells one wait
// from the next (the number of the try, the instance of the order). Where a
// timer is set again and again, a handler whose state says "not yet" sets it
// once more: the one that fired can have taken its successor along.
//
// # Not guaranteed
//
//   - Precision. The server fires up to about a second late, later when it is
//     down at that moment; never early.
//   - That a timer outlives the stream's limits: a stream TIMERS that an operator has given one evicts timers.
type Timer struct {
	// Name tells what the timer is for, as in "deadline": [a-z][a-z0-9-]{0,31}
	// but not "retry". It is unique within the consumer. Required.
	Name string
	// After is how long after the causing event the timer fires: after it was
	// stored, by the server's clock, however often and late it is tried or
	// replayed. If that time has passed already the timer fires at once. More
	// than 0, at most [MaxTimer].
	After time.Duration
	// Event is what is published then; its key is the timer's. The event's
	// time is the instant for which the timer is set. Required.
	Event event.Draft
}

// TimerID names a timer of a consumer, to cancel it.
type TimerID struct {
	Name string
	Key  event.Key // of its event
}

// MaxTimer is the longest that a timer can be set for.
const MaxTimer = 366 * 24 * time.Hour

var timerName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// ID returns what names the timer.
func (t Timer) ID() TimerID { return TimerID{Name: t.Name, Key: t.Event.Key} }

func (t TimerID) validate() error {
	switch {
	case !timerName.MatchString(t.Name):
		return fmt.Errorf("%w: name %q: want [a-z][a-z0-9-]{0,31}", ErrTimer, t.Name)
	case t.Name == dlq.TimerRetry:
		return fmt.Errorf("%w: the name %q is taken by retries", ErrTimer, t.Name)
	case t.Key == "":
		return fmt.Errorf("%w: %s: empty key", ErrTimer, t.Name)
	}
	return nil
}

// schedules knows whether the stream of timers keeps them. It asks when the
// first one is set, and until the answer is yes.
type schedules struct {
	bus            *bus.Bus
	timers, events string // the streams

	mu     sync.Mutex
	known  bool
	maxAge time.Duration
}

// limit returns how long a timer can wait, 0 for any time. The error matches
// [ErrNoTimers].
func (s *schedules) limit(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return s.maxAge, nil
	}
	timers, err := s.bus.Stream(ctx, s.timers)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoTimers, err)
	}
	events, err := s.bus.Stream(ctx, s.events)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoTimers, err)
	}
	cfg := timers.CachedInfo().Config
	if !cfg.AllowMsgSchedules || !cfg.AllowMsgTTL || !cfg.AllowRollup {
		return 0, fmt.Errorf("%w: stream %s does not allow message schedules, message TTL and rollup: run `farandole topology apply` (nats-server 2.12 or later)",
			ErrNoTimers, s.timers)
	}
	if !slices.ContainsFunc(events.CachedInfo().Config.Sources, func(from *jetstream.StreamSource) bool { return from.Name == s.timers }) {
		return 0, fmt.Errorf("%w: stream %s does not take what is due from stream %s: run `farandole topology apply`", ErrNoTimers, s.events, s.timers)
	}
	s.known, s.maxAge = true, cfg.MaxAge
	return s.maxAge, nil
}
