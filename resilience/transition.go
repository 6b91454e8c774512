package resilience

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
)

// State of a breaker.
type State int

const (
	// Closed lets all calls through.
	Closed State = iota
	// Open lets no call through.
	Open
	// HalfOpen lets BreakerConfig.Probes calls through.
	HalfOpen
)

const states = int(HalfOpen) + 1

// String returns closed, open or half_open.
func (s State) String() string {
	switch s {
	case Open:
		return "open"
	case HalfOpen:
		return "half_open"
	default:
		return "closed"
	}
}

// Event is why a breaker has changed its state.
type Event string

const (
	// EventFailures: so many failures in a row.
	EventFailures Event = "failures"
	// EventFailureRate: too large a part of the window's calls has failed.
	EventFailureRate Event = "failure_rate"
	// EventWaited: the time of an open breaker is over, and a call came.
	EventWaited Event = "waited"
	// EventProbeFailed: a probe has failed.
	EventProbeFailed Event = "probe_failed"
	// EventProbeTimeout: a probe has not reported in time.
	EventProbeTimeout Event = "probe_timeout"
	// EventRecovered: all probes have succeeded.
	EventRecovered Event = "recovered"
	// EventForced: [Breaker.Open] or [Breaker.Close] was called.
	EventForced Event = "forced"
)

// Transition is one change of a breaker's state.
type Transition struct {
	Breaker  string
	From, To State
	Event    Event
	// OpenFor is how long the breaker stays open; 0 unless To is [Open].
	OpenFor time.Duration
	// Latency and Err are those of the call that caused the transition, if one did.
	Latency time.Duration
	Err     error
	// ConsecutiveFailures and HalfOpenSuccesses are the counts before the transition.
	ConsecutiveFailures, HalfOpenSuccesses int
}

// The fields of a breaker's log lines.
const (
	keyBreaker   = "breaker"
	keyState     = "state"
	keyEvent     = "event"
	keyLatency   = "latency_ms"
	keyFailures  = "consecutive_failures"
	keySuccesses = "half_open_successes"
	keyBackoff   = "backoff_seconds"
	keyErrorType = "error_type"
)

// log writes the transition's line.
func (t Transition) log(l *zerolog.Logger) {
	level := zerolog.InfoLevel
	if t.To == Open {
		level = zerolog.WarnLevel
	}
	line := l.WithLevel(level).Str(keyBreaker, t.Breaker).Stringer(keyState, t.To).Str(keyEvent, string(t.Event)).
		Float64(keyLatency, t.Latency.Seconds()*1000).Int(keyFailures, t.ConsecutiveFailures).
		Int(keySuccesses, t.HalfOpenSuccesses).Float64(keyBackoff, t.OpenFor.Seconds())
	line.Str(keyErrorType, errorType(t.Err)).AnErr("error", t.Err).Msg("breaker has changed its state")
}

// errorType is the type of the innermost error; of several, of the last.
func errorType(err error) string {
	if err == nil {
		return ""
	}
	for {
		var inner error
		switch e := err.(type) { //nolint:errorlint // walks the chain by hand to find its end
		case interface{ Unwrap() error }:
			inner = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				inner = all[len(all)-1]
			}
		}
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}
