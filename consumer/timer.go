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

// Timer is an event that the server publishes at a later time, also while no
// consumer is running. A handler sets it by returning it in [Step.Timers]. Until
// then it is kept in the stream TIMERS. It is stored before the mark that the step
// is done; with outbox.Ledger it is stored in the step's transaction.
//
// A timer is identified by its name and the key of its event. Setting it again
// replaces it. [Step.Cancel] cancels it. The id of its event is derived from the
// event that caused it, as with every outgoing event. So a step that runs again
// sets the same timer for the same time, and an event that is published twice
// takes effect once.
//
// # Stale timers
//
// A handler can get a timer's event although the timer should not fire any more:
//
//   - The timer was stored, and its step was not: after a crash, after a lost
//     lease, or when the handler ran again on newer state and did not set it.
//   - The timer's cancellation was lost in a crash right after its step.
//   - The timer fired at the moment in which it was cancelled or set again.
//
// So the handler checks in its own state whether the timer still applies, and
// returns [Skip] if not. Put into the event what distinguishes one use of the timer
// from the next, such as the number of the attempt.
//
// A timer that fires while it is set again can remove the new one. So a handler
// whose state says "not yet" sets the timer once more.
//
// # Not guaranteed
//
//   - Precision. A timer never fires early. It fires up to about a second late, and
//     later if the server is down at that time.
//   - That a timer outlives the limits of the stream TIMERS. The stream has none unless
//     an operator sets one; then it evicts timers.
type Timer struct {
	// Name says what the timer is for, as in "deadline". It has the form
	// [a-z][a-z0-9-]{0,31} and is not "retry". It is unique within the consumer.
	// Required.
	Name string
	// After is the time from the storing of the causing event to the firing of the
	// timer, by the server's clock. Retries and replays of that event do not change
	// it. A timer whose time has passed fires at once. More than 0, at most
	// [MaxTimer]. Required.
	After time.Duration
	// Event is what the server publishes. Its key is also the timer's key, and its
	// time attribute is the time for which the timer is set. Required.
	Event event.Draft
}

// TimerID identifies a timer of a consumer, for [Step.Cancel].
type TimerID struct {
	Name string
	Key  event.Key // of the timer's event
}

// MaxTimer is the longest that a timer can be set for.
const MaxTimer = 366 * 24 * time.Hour

var timerName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// ID identifies the timer, for [Step.Cancel].
func (t Timer) ID() TimerID { return TimerID{Name: t.Name, Key: t.Event.Key} }

func (t TimerID) validate() error {
	switch {
	case !timerName.MatchString(t.Name):
		return fmt.Errorf("%w: name %q: want [a-z][a-z0-9-]{0,31}", ErrTimer, t.Name)
	case t.Name == dlq.TimerRetry:
		return fmt.Errorf("%w: the name %q is reserved for retries: choose another", ErrTimer, t.Name)
	case t.Key == "":
		return fmt.Errorf("%w: %s: empty key", ErrTimer, t.Name)
	}
	return nil
}

// schedules checks whether the server can keep timers: whether both streams have the
// settings that timers need. It checks when the first timer is set, and remembers
// only a yes.
type schedules struct {
	bus            *bus.Bus
	timers, events string // names of the streams

	mu     sync.Mutex
	known  bool
	maxAge time.Duration
}

// limit returns the age limit of the stream of timers, 0 for none. A timer cannot wait
// longer. The error matches [ErrNoTimers].
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
		return 0, fmt.Errorf("%w: stream %s does not have stream %s as a source: run `farandole topology apply`", ErrNoTimers, s.events, s.timers)
	}
	s.known, s.maxAge = true, cfg.MaxAge
	return s.maxAge, nil
}
