package resilience

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

// RetryConfig says how often a failed call is made again, and when. The zero value
// does not retry. Where a consumer retries events, calls of its handlers should not
// be retried, too: the numbers multiply.
type RetryConfig struct {
	// Retries is how often a call is made again: 2 retries are 3 attempts. Only
	// failures ([Failure]) are retried, not what a policy has rejected. Defaults to 0.
	Retries int
	// BaseDelay is the ceiling of the delay before the first retry; it doubles with
	// each. Defaults to 100 ms.
	BaseDelay time.Duration
	// MaxDelay bounds the ceiling. A dependency that asks for a longer delay
	// (Retry-After) is not tried again: the caller gets the error. A shorter one is
	// kept at least. Defaults to 5 s.
	MaxDelay time.Duration
	// Jitter spreads the delays. Defaults to [FullJitter].
	Jitter Jitter
}

// Jitter says how a delay is drawn below its ceiling.
type Jitter int

const (
	// FullJitter draws from all of [0, ceiling], so that those who failed together
	// do not come back together.
	FullJitter Jitter = iota
	// EqualJitter draws from [ceiling/2, ceiling].
	EqualJitter
	// NoJitter takes the ceiling.
	NoJitter
)

// String names the jitter.
func (j Jitter) String() string {
	switch j {
	case EqualJitter:
		return "equal jitter"
	case NoJitter:
		return "no jitter"
	default:
		return "full jitter"
	}
}

const (
	defaultBaseDelay = 100 * time.Millisecond
	defaultMaxDelay  = 5 * time.Second
)

func (c RetryConfig) withDefaults() RetryConfig {
	if c.Retries != 0 {
		c.BaseDelay = cmp.Or(c.BaseDelay, defaultBaseDelay)
		c.MaxDelay = cmp.Or(c.MaxDelay, max(defaultMaxDelay, c.BaseDelay))
	}
	return c
}

func (c RetryConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: Retry: "+format, append([]any{ErrConfig}, args...)...))
	}
	if c.Retries < 0 {
		bad("Retries %d: want 0 or more", c.Retries)
	}
	if c.BaseDelay < 0 || c.MaxDelay < c.BaseDelay {
		bad("BaseDelay %v, MaxDelay %v: want none negative, and MaxDelay no shorter", c.BaseDelay, c.MaxDelay)
	}
	if c.Jitter < FullJitter || c.Jitter > NoJitter {
		bad("Jitter %d: want FullJitter, EqualJitter or NoJitter", c.Jitter)
	}
	return errors.Join(errs...)
}

// delay is the time before retry n, counted from 0. random is in [0, 1].
func (c RetryConfig) delay(n int, random float64) time.Duration {
	switch c.Jitter {
	case EqualJitter:
		random = 0.5 + random/2
	case NoJitter:
		random = 1
	case FullJitter:
	}
	return backoff.FullJitter(c.BaseDelay, c.MaxDelay, n, random)
}

// tries are the attempts of one call.
type tries struct {
	guard *Guard
	n     int
	last  error // of the attempt before
}

// next says whether to make the call again, and when.
func (t *tries) next(ctx context.Context, o Outcome, err error) (delay time.Duration, again bool) {
	cfg := t.guard.cfg.Retry
	if o != Failure || t.n >= cfg.Retries {
		return 0, false
	}
	delay = cfg.delay(t.n, rand.Float64()) //nolint:gosec // jitter
	var wish interface{ RetryAfter() time.Duration }
	if errors.As(err, &wish) {
		if wish.RetryAfter() > cfg.MaxDelay {
			return 0, false
		}
		delay = max(delay, wish.RetryAfter())
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= delay {
		return 0, false
	}
	t.n++
	t.last = err
	t.guard.retries.Add(1)
	return delay, true
}

// wait waits before the next attempt. It returns false when ctx ends before.
func (t *tries) wait(ctx context.Context, delay time.Duration) bool {
	t.guard.backingOff.Add(1)
	defer t.guard.backingOff.Add(-1)
	return backoff.Wait(ctx, delay)
}

// end is the error of the call: that of the last attempt, and of the one before if
// the last one was not made.
func (t *tries) end(err error) error {
	if t.last != nil && isRejection(err) {
		return fmt.Errorf("%w; before: %w", err, t.last)
	}
	return err
}
