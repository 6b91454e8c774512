package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/text"
)

// fail ends the journey of an event that has no step because of err. When err is
// not the event's fault, the event is given back and no attempt is spent.
func (c *Consumer) fail(ctx context.Context, d *delivery, claim *dedup.Claim, err error) result {
	lasting := context.WithoutCancel(ctx)
	after, unattempted := notYetOf(err)
	switch cause := context.Cause(ctx); {
	case errors.Is(err, errHeartbeat):
		// Others may own the event already; if not, it was not its fault.
		return c.release(lasting, d, claim, nil, lost, 0)
	case cause != nil && !isFinal(err):
		return c.release(lasting, d, claim, nil, released, 0)
	case unattempted && !isFinal(err):
		c.eventLog(d, c.log.Debug()).Err(err).Stringer("back_in", after.Round(time.Millisecond)).Msg("not attempted")
		return c.release(lasting, d, claim, nil, released, after)
	case errors.Is(err, ErrNoTimers):
		return c.failClosed(lasting, d, claim, partTimers, nil, err)
	case isOutage(err) && wishOf(err) == nil:
		// An outage of what the handler stands on is not the event's fault either.
		return c.failClosed(lasting, d, claim, partHandler, nil, err)
	}
	return c.spend(lasting, d, claim, err)
}

// spend records a failed attempt, and retries or parks the event.
func (c *Consumer) spend(ctx context.Context, d *delivery, claim *dedup.Claim, err error) result {
	attempt := c.attempt(claim, err)
	v := decide(err, attempt.Number, c.cfg.Retry, draw(d.key, d.redrive.Replay, attempt.Number, c.cfg.Retry))
	if v.action == park {
		return c.park(ctx, d, claim, &attempt, v.reason)
	}
	c.eventLog(d, c.log.Info()).Err(err).Int(keyAttempt, attempt.Number).Stringer("retry_in", v.delay.Round(time.Millisecond)).Bool("yields", v.yields).Msg("handler failed, will retry")
	var end result
	if later := c.deferral(ctx, d, v); later != nil {
		end = c.postpone(ctx, d, claim, &attempt, later, v.delay)
	} else {
		end = c.release(ctx, d, claim, &attempt, retried, v.delay)
	}
	if v.yields {
		end.again = 0 // also without a timer it does not hold its key
	}
	return end
}

// action is what becomes of an event that has failed.
type action int

const (
	retry action = iota + 1
	park
)

// verdict is the answer of decide.
type verdict struct {
	action action
	reason string        // of park
	delay  time.Duration // of retry
	yields bool          // a retry that does not hold its key
}

// decide says what becomes of an event after its failures-th failure (counted from
// 1). random is in [0, 1], and uniform over events ([draw]). It is pure: the table of
// TestDecide is its specification.
func decide(err error, failures int, p RetryPolicy, random float64) verdict {
	var atLeast time.Duration
	var gives bool
	if w := wishOf(err); w != nil {
		switch w.kind {
		case permanent:
			return verdict{action: park, reason: event.ReasonPermanent}
		case undecodable:
			return verdict{action: park, reason: event.ReasonDecode}
		case expired:
			return verdict{action: park, reason: event.ReasonExpired}
		case retryAfter:
			atLeast = w.after
		case yields:
			atLeast, gives = max(w.after, leastTimer), true
		}
	}
	if failures >= p.MaxAttempts {
		return verdict{action: park, reason: event.ReasonExhausted}
	}
	return verdict{action: retry, delay: max(atLeast, backoff.FullJitter(p.BaseDelay, p.MaxDelay, failures-1, random)), yields: gives}
}

// Answer is what a consumer does about a handler's error, in tests without a server
// (package bustest).
type Answer struct {
	// Reason is that of the dead letter, as in "permanent". It is empty if the event comes again.
	Reason string
	// After is when it comes again.
	After time.Duration
	// Spent is false if this was no attempt.
	Spent bool
	// HoldsKey says that the next events of its key wait meanwhile.
	HoldsKey bool
}

// Answer is what becomes of an event after an error of its handler, which is not [Skip].
// failures counts the failed attempts, this one included. The delay is in the middle of
// its interval, where a consumer draws it.
func (p RetryPolicy) Answer(err error, failures int) Answer {
	p = p.withDefaults()
	if after, unattempted := notYetOf(err); unattempted && !isFinal(err) {
		return Answer{After: after, HoldsKey: true}
	}
	v := decide(err, failures, p, 0.5)
	if v.action == park {
		return Answer{Reason: v.reason, Spent: true}
	}
	return Answer{After: v.delay, Spent: true, HoldsKey: !v.yields && v.delay <= p.DeferAfter}
}

// draw is an event's place in its jitter intervals, uniform over events and the
// same on every replica: u for all its retries but the last, 1-u for that. Each
// delay on its own is full jitter, so events that failed together do not come back
// together. But an event that drew short delays draws a long last one: the
// attempts of k retries always last at least (2^(k-1) - 1) times the base delay
// (below the cap). Independent draws would now and then spend all attempts within
// a moment of an outage.
func draw(key event.EventKey, replay, failures int, p RetryPolicy) float64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", key, replay))
	u := float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53)
	if failures == p.MaxAttempts-1 {
		return 1 - u
	}
	return u
}

// attempt tells a failure for the ledger.
func (c *Consumer) attempt(claim *dedup.Claim, err error) event.Attempt {
	return event.Attempt{
		Number: claim.Failures + 1,
		At:     time.Now().UTC(),
		Class:  classOf(err),
		Error:  text.Cut(err.Error(), event.MaxErrorText),
		Host:   c.host,
	}
}

// classOf names the kind of an error for people and statistics: the type of
// the innermost error, "error" for a plain one.
func classOf(err error) string {
	switch {
	case errors.Is(err, ErrPanic):
		return "panic"
	case errors.Is(err, ErrGoexit):
		return "goexit"
	case errors.Is(err, ErrTimeout):
		return "timeout"
	case errors.Is(err, event.ErrDecode):
		return "decode"
	}
	for {
		switch e := err.(type) { //nolint:errorlint // walks the chain by hand to find its end
		case interface{ Unwrap() error }:
			if inner := e.Unwrap(); inner != nil {
				err = inner
				continue
			}
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				err = all[len(all)-1]
				continue
			}
		}
		break
	}
	name := strings.TrimPrefix(reflect.TypeOf(err).String(), "*")
	if name == "errors.errorString" {
		return "error"
	}
	return name
}

func lastOf(attempts []event.Attempt) event.Attempt {
	if len(attempts) == 0 {
		return event.Attempt{}
	}
	return attempts[len(attempts)-1]
}
