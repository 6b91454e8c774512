package resilience

import (
	"errors"
	"fmt"
	"time"
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
