package resilience

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says which policies a guard has. Only Name is required; each policy is off
// by default.
type Config struct {
	// Name of the guard, for errors and metrics; mostly that of the dependency. Required.
	Name string
	// Retry makes failed calls again. Defaults to no retries.
	Retry RetryConfig
	// Rate limits how often calls are made. Defaults to no limit.
	Rate RateConfig
	// Bulkhead bounds how many calls are under way. Defaults to no bound.
	Bulkhead BulkheadConfig
	// Breaker stops calls while the dependency fails. Guards may share one. Defaults
	// to none.
	Breaker *Breaker
	// Timeout of one attempt. If the caller's context ends earlier, the attempt gets
	// nine tenths of what is left, so that the caller learns about it and has time to
	// react. Defaults to 0: the caller's context alone bounds the call.
	Timeout time.Duration
	// Classify says what an error means. Defaults to [Classify].
	Classify Classifier
	// Metrics registers the guard's metrics; docs/resilience.md lists them. Defaults to none.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	c.Retry, c.Rate = c.Retry.withDefaults(), c.Rate.withDefaults()
	if c.Classify == nil {
		c.Classify = Classify
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Retry.validate(), c.Rate.validate(), c.Bulkhead.validate()}
	if c.Name == "" {
		errs = append(errs, fmt.Errorf("%w: Name is required", ErrConfig))
	}
	if c.Timeout < 0 || c.Breaker != nil && c.Timeout > c.Breaker.cfg.ProbeTimeout {
		errs = append(errs, fmt.Errorf("%w: Timeout %v: want no negative time, and none that is longer than the breaker's ProbeTimeout", ErrConfig, c.Timeout))
	}
	return errors.Join(errs...)
}

// Guard puts policies around the calls of one dependency, in this order:
//
//	fallback > retry > rate limit > bulkhead > breaker > timeout > call
//
// What is left takes in what is right of it: each attempt takes a token and a place
// of its own, and the timeout is that of one attempt. The breaker comes after what
// makes a call wait, so that a call which has waited meets the breaker as it is now,
// and waiting does not look like a slow dependency. It is asked once more before
// anything waits, so that a call which will be rejected is rejected at once.
//
// Make it with [New]. It is safe for concurrent use.
type Guard struct {
	cfg      Config
	limiter  *limiter
	bulkhead *bulkhead

	ended      [outcomes]atomic.Uint64
	rejected   [policies]atomic.Uint64
	running    atomic.Int64
	retries    atomic.Uint64
	backingOff atomic.Int64
	timeouts   atomic.Uint64
	fallbacks  atomic.Uint64
}

// New returns a guard. It does no I/O. The error matches [ErrConfig].
func New(cfg Config) (*Guard, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("%w; guard %q", err, cfg.Name)
	}
	g := &Guard{cfg: cfg}
	if cfg.Rate.on() {
		g.limiter = newLimiter(cfg.Name, cfg.Rate)
	}
	if cfg.Bulkhead.Concurrency > 0 {
		g.bulkhead = newBulkhead(cfg.Name, cfg.Bulkhead)
	}
	if cfg.Metrics != nil {
		if err := g.register(cfg.Metrics); err != nil {
			return nil, fmt.Errorf("%w: guard %s: metrics: %w", ErrConfig, cfg.Name, err)
		}
	}
	return g, nil
}

// Do makes a call under the guard's policies. fn must return when its context ends:
// Do waits for it, also beyond the timeout. The error is fn's, which then also
// matches [ErrTimeout] if it outran its timeout, or matches [ErrOpen], [ErrFull] or
// [ErrLimited] if the call was not made, or is why ctx ended before it was made. A
// panic of fn goes through, and no place or permit is lost.
func (g *Guard) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	t := tries{guard: g}
	for {
		o, err := g.once(ctx, fn)
		if err == nil {
			return nil
		}
		delay, again := t.next(ctx, o, err)
		if !again || !t.wait(ctx, delay) {
			return t.end(err)
		}
	}
}

// Get is [Guard.Do] for calls with a result: that of the last attempt.
func Get[T any](ctx context.Context, g *Guard, fn func(ctx context.Context) (T, error)) (result T, err error) {
	err = g.Do(ctx, func(ctx context.Context) (err error) {
		result, err = fn(ctx)
		return err
	})
	return result, err
}

// once makes one attempt.
func (g *Guard) once(ctx context.Context, fn func(ctx context.Context) error) (o Outcome, err error) {
	c := attempt{guard: g, caller: ctx}
	if err = c.enter(); err != nil {
		return Neutral, err
	}
	defer func() { c.leave(o, err) }() // Neutral after a panic, which says nothing about the dependency
	err = c.explain(fn(c.ctx))         //nolint:contextcheck // a child of ctx
	return c.outcome(err), err
}

// SetShare gives this process a part of the configured rates, over 0 and up to 1: for
// a limit that several processes share. Without [Config.Rate] it does nothing.
func (g *Guard) SetShare(share float64) {
	if g.limiter != nil {
		g.limiter.setShare(share)
	}
}

// Describe tells the guard's policies in their order, for people.
func (g *Guard) Describe() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	c := g.cfg
	if c.Retry.Retries > 0 {
		add("retry (%d, %v to %v, %v)", c.Retry.Retries, c.Retry.BaseDelay, c.Retry.MaxDelay, c.Retry.Jitter)
	}
	if c.Rate.on() {
		parts = append(parts, c.Rate.describe())
	}
	if c.Bulkhead.Concurrency > 0 {
		add("bulkhead (%d at once, %d waiting)", c.Bulkhead.Concurrency, c.Bulkhead.Queue)
	}
	if c.Breaker != nil {
		parts = append(parts, c.Breaker.Describe())
	}
	if c.Timeout > 0 {
		add("timeout (%v)", c.Timeout)
	}
	return strings.Join(append(parts, "call"), " > ")
}

func (c RateConfig) describe() string {
	var limits []string
	if c.PerSecond > 0 {
		limits = append(limits, fmt.Sprintf("%v/s, burst %d", c.PerSecond, c.Burst))
	}
	if c.KeyPerSecond > 0 {
		limits = append(limits, fmt.Sprintf("%v/s a key, burst %d", c.KeyPerSecond, c.KeyBurst))
	}
	how := "refuses"
	if c.MaxWait > 0 {
		how = fmt.Sprintf("waits up to %v", c.MaxWait)
	}
	return fmt.Sprintf("rate limit (%s, %s)", strings.Join(limits, ", "), how)
}
