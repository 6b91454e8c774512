package resilience

import (
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

var (
	// ErrConfig is returned by constructors when a setting is wrong.
	ErrConfig = errors.New("resilience: configuration")
	// ErrOpen is matched by the error of a call that a breaker did not let
	// through. The error is an [*OpenError].
	ErrOpen = errors.New("resilience: breaker is open")
	// ErrProbeTimeout is the error of a transition because a probe did not report
	// within BreakerConfig.ProbeTimeout.
	ErrProbeTimeout = errors.New("resilience: probe did not report in time")
	// ErrLimited is matched by the error of a call that the rate limit refused. The
	// error is a [*LimitError].
	ErrLimited = errors.New("resilience: rate limit")
	// ErrFull is matched by the error of a call for which the bulkhead had no room,
	// and of one whose context ended while it was queued; then it also matches why.
	ErrFull = errors.New("resilience: bulkhead is full")
	// ErrTimeout is matched by the error of a call that did not return within its
	// timeout. It is then unknown whether the dependency did what it was asked to.
	ErrTimeout = errors.New("resilience: timeout")
)

// OpenError says which breaker did not let a call through. It matches [ErrOpen].
type OpenError struct {
	// Breaker is the breaker's name.
	Breaker string
	// State is [Open], or [HalfOpen] while all probes are under way.
	State State
	// StaysOpen is how long the breaker stays open at least; 0 while it is half-open.
	StaysOpen time.Duration
	// RetryAfter is when to come back: StaysOpen, and at random up to
	// BreakerConfig.OpenFor more, so that those who were turned away together do
	// not come back together.
	RetryAfter time.Duration
}

// Error tells breaker, state and times.
func (e *OpenError) Error() string {
	return fmt.Sprintf("resilience: breaker %s is %v for %v, come back after %v",
		e.Breaker, e.State, e.StaysOpen.Round(time.Millisecond), e.RetryAfter.Round(time.Millisecond))
}

// Is makes the error match [ErrOpen].
func (e *OpenError) Is(target error) bool { return target == ErrOpen }

// NotYet tells package consumer that an event whose handler returns this error was not
// attempted, and when it comes again.
func (e *OpenError) NotYet() time.Duration { return e.RetryAfter }

// LimitError says which limit refused a call. It matches [ErrLimited].
type LimitError struct {
	// Guard is the guard's name.
	Guard string
	// Key is the call's key if the limit of one key refused it, else empty.
	Key string
	// RetryAfter is when to come back: when there would be a token, and at random up to
	// as long again, so that those who were refused together do not come back together.
	RetryAfter time.Duration
}

// Error tells guard, key and time.
func (e *LimitError) Error() string {
	of := e.Guard
	if e.Key != "" {
		of += fmt.Sprintf(" for %q", e.Key)
	}
	return fmt.Sprintf("resilience: rate limit of %s: come back after %v", of, e.RetryAfter.Round(time.Millisecond))
}

// Is makes the error match [ErrLimited].
func (e *LimitError) Is(target error) bool { return target == ErrLimited }

// NotYet tells package consumer what [OpenError.NotYet] does.
func (e *LimitError) NotYet() time.Duration { return e.RetryAfter }

// fullError matches [ErrFull].
type fullError struct {
	guard          string
	running, queue int
}

func (e *fullError) Error() string {
	return fmt.Sprintf("%s: %s: %d calls are running and %d waiting", ErrFull.Error(), e.guard, e.running, e.queue)
}
func (e *fullError) Is(target error) bool { return target == ErrFull }

// whenFull is about how long an event waits that found a bulkhead full: nobody knows
// when there will be room.
const whenFull = time.Second

// NotYet tells package consumer what [OpenError.NotYet] does.
func (e *fullError) NotYet() time.Duration { return backoff.Around(whenFull) }
