package consumer

import (
	"errors"
	"time"
)

var (
	// ErrConfig is returned by New when a setting or registration is wrong,
	// and by Run when it contradicts the stream or the ledger.
	ErrConfig = errors.New("consumer: configuration")
	// ErrUnhealthy is matched by what Health returns while the consumer cannot make progress.
	ErrUnhealthy = errors.New("consumer: unhealthy")
	// ErrPanic is matched by the error of a handler that panicked.
	ErrPanic = errors.New("consumer: handler panicked")
	// ErrGoexit is matched by the error of a handler that ended its goroutine, as
	// runtime.Goexit and the FailNow of a test do.
	ErrGoexit = errors.New("consumer: handler ended its goroutine")
	// ErrTimeout is matched by the error of a handler that outran its timeout.
	ErrTimeout = errors.New("consumer: handler timeout")
	// ErrAbandoned is returned by Run when handlers ignored their cancellation.
	ErrAbandoned = errors.New("consumer: handlers did not return")
	// ErrTimer is matched when a step's timers cannot be: an illegal name or
	// time, or a timer set or cancelled twice in one step. The event is
	// dead-lettered as "permanent".
	ErrTimer = errors.New("consumer: invalid timer")
	// ErrNoTimers is matched by what Health returns after a step with timers
	// while the event stream does not keep any; the event waits.
	ErrNoTimers = errors.New("consumer: no timers")
	// ErrNoDurable is returned by [Drop] for a consumer that has none.
	ErrNoDurable = errors.New("consumer: no durable")

	// errShutdown is why handlers are cancelled at the end of the grace period.
	errShutdown = errors.New("consumer: shutting down")
	// errStuck is reported while handlers do not return although they were cancelled.
	errStuck = errors.New("consumer: handlers ignore their cancellation")
	// errAlone is why an event spends an attempt that meets an outage alone.
	errAlone = errors.New("consumer: no answer to this event again and again, while others get through")
	// errUnbound is why a durable is bound again: it does not answer.
	errUnbound = errors.New("consumer: durable does not answer")
	// errStarved is reported while nobody pulls although something is pending.
	errStarved = errors.New("consumer: nothing is pulled")
	// errClogged is reported while waiting retries fill MaxAckPending.
	errClogged = errors.New("consumer: clogged by retries")
	// errNoHandler is reported while events come back that no replica handles.
	errNoHandler = errors.New("consumer: no handler")
	// errEnded is why a consumer is unhealthy whose Run has returned.
	errEnded = errors.New("consumer: ended")
	// errExpired is why an event is dead-lettered whose expirytime has passed.
	errExpired = errors.New("consumer: event expired")
	// errStarting is why a consumer is unhealthy that has not begun to pull.
	errStarting = errors.New("consumer: starting")
	// errCrashLoop is why an event is dead-lettered that was running whenever the process died.
	errCrashLoop = errors.New("consumer: process died while the handler ran")
	// errHeartbeat is why a handler is cancelled whose lease could not be renewed.
	errHeartbeat = errors.New("consumer: heartbeat failed")
)

// Skip is returned by a handler that has looked at the event and wants nothing
// to follow from it: it is marked done and counted as skipped.
var Skip = errors.New("consumer: skipped") //nolint:gochecknoglobals,revive,staticcheck // an outcome that reads as a verb: return consumer.Step{}, consumer.Skip

// Permanent marks err as not worth another attempt: the event is dead-lettered
// at once with reason "permanent". Permanent(nil) is nil.
func Permanent(err error) error { return withOutcome(permanent, err, 0) }

// RetryAfter asks for the next attempt not before d, as a dependency's
// Retry-After does: after d or the policy's delay, whichever is longer. A
// dependency that says "in a second" all through an outage thus does not use up
// the attempts within seconds. It spends an attempt. Beyond
// [RetryPolicy.DeferAfter] the event gives its place to others meanwhile; d must
// be shorter than what ledger and stream keep. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error { return withOutcome(retryAfter, err, d) }

// outcome is a wish for what becomes of a failed event.
type outcome int

const (
	permanent outcome = iota + 1
	retryAfter
	undecodable
	expired
)

// outcomeError carries such a wish with the error.
type outcomeError struct {
	outcome outcome
	err     error
	after   time.Duration
}

func (e *outcomeError) Error() string { return e.err.Error() }
func (e *outcomeError) Unwrap() error { return e.err }

func withOutcome(o outcome, err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &outcomeError{outcome: o, err: err, after: after}
}
