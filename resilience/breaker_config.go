package resilience

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/internal/logs"
)

// BreakerConfig says when a breaker opens, for how long, and how it finds out
// whether the dependency works again. Only Name is required.
type BreakerConfig struct {
	// Name of the dependency, for errors, logs and metrics. Required.
	Name string
	// Failures is how many failures in a row open the breaker; a neutral outcome
	// does not end the row. Defaults to 5, and must be 0 with FailureRate.
	Failures int
	// FailureRate opens the breaker when so large a part of the calls in the window
	// has failed, over 0 and up to 1. It needs Window or WindowCalls. Defaults to 0:
	// Failures decides.
	FailureRate float64
	// Window is the time over which FailureRate looks back, in ten steps. Defaults
	// to 0: the window is WindowCalls.
	Window time.Duration
	// WindowCalls is the number of calls over which FailureRate looks back, at most
	// 10,000. Defaults to 0: the window is Window.
	WindowCalls int
	// MinCalls is how many calls the window must hold before FailureRate counts.
	// Defaults to 10, with WindowCalls to no more than that.
	MinCalls int
	// SlowAfter makes a success that took longer a failure. Defaults to 0: no call
	// is too slow.
	SlowAfter time.Duration
	// OpenFor is how long the breaker stays open; at random up to a quarter more,
	// so that replicas do not probe together. Defaults to 5 s.
	OpenFor time.Duration
	// Probes is how many calls a half-open breaker lets through. If all of them
	// succeed, it closes; if one fails, it opens for the full time. Defaults to 3.
	Probes int
	// ProbeTimeout is how long a probe may take to report. Then it has failed, and
	// what it reports later does not count. It is no shorter than the call's timeout.
	// Defaults to 10 s.
	ProbeTimeout time.Duration
	// Logger gets a line for each transition: a warning when the breaker opens, else
	// info. A rejected call is a line of level debug, because there is one for each
	// call during an outage. Defaults to warnings on stderr; silence is zerolog.Nop().
	Logger zerolog.Logger
	// Metrics registers the breaker's metrics; docs/resilience.md lists them. Defaults to none.
	Metrics prometheus.Registerer
}

const (
	defaultFailures     = 5
	defaultMinCalls     = 10
	defaultOpenFor      = 5 * time.Second
	defaultProbes       = 3
	defaultProbeTimeout = 10 * time.Second
	maxWindowCalls      = 10_000
	windowSteps         = 10 // of a window of time
	openJitter          = 0.25
)

func (c BreakerConfig) withDefaults() BreakerConfig {
	if c.FailureRate == 0 {
		c.Failures = cmp.Or(c.Failures, defaultFailures)
	} else {
		c.MinCalls = cmp.Or(c.MinCalls, min(defaultMinCalls, cmp.Or(c.WindowCalls, defaultMinCalls)))
	}
	c.Logger = logs.Or(c.Logger, logs.Stderr)
	c.OpenFor = cmp.Or(c.OpenFor, defaultOpenFor)
	c.Probes = cmp.Or(c.Probes, defaultProbes)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, defaultProbeTimeout)
	return c
}

func (c BreakerConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: breaker %s: "+format, append([]any{ErrConfig, c.Name}, args...)...))
	}
	if c.Name == "" {
		bad("Name is required")
	}
	if c.Failures < 0 || c.Failures > 0 && c.FailureRate != 0 {
		bad("Failures %d: want more than 0, or 0 with FailureRate", c.Failures)
	}
	if !(c.FailureRate >= 0 && c.FailureRate <= 1) { // also of NaN
		bad("FailureRate %v: want over 0, up to 1", c.FailureRate)
	}
	if c.FailureRate == 0 && (c.Window != 0 || c.WindowCalls != 0 || c.MinCalls != 0) {
		bad("Window, WindowCalls and MinCalls need FailureRate")
	}
	if c.FailureRate != 0 {
		if c.Window < 0 || c.WindowCalls < 0 || (c.Window == 0) == (c.WindowCalls == 0) || c.WindowCalls > maxWindowCalls {
			bad("Window %v, WindowCalls %d: want one of them, and at most %d calls", c.Window, c.WindowCalls, maxWindowCalls)
		}
		if c.Window != 0 && c.Window < windowSteps {
			bad("Window %v: want at least %d ns", c.Window, windowSteps)
		}
		if c.MinCalls < 1 || c.WindowCalls > 0 && c.MinCalls > c.WindowCalls {
			bad("MinCalls %d: want at least 1, and no more than WindowCalls %d", c.MinCalls, c.WindowCalls)
		}
	}
	if c.SlowAfter < 0 || c.OpenFor < 0 || c.ProbeTimeout < 0 {
		bad("SlowAfter %v, OpenFor %v, ProbeTimeout %v: want no negative time", c.SlowAfter, c.OpenFor, c.ProbeTimeout)
	}
	if c.Probes < 0 {
		bad("Probes %d: want 1 or more", c.Probes)
	}
	return errors.Join(errs...)
}
