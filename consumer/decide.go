package consumer

import (
	"errors"
	"time"

	"github.com/farandole/farandole/bus"
)

// action is what becomes of an event whose handler failed.
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
}

// decide says what becomes of an event after its failures-th failure in a row
// (counted from 1). random is uniform in [0, 1). It is pure: the table in
// decide_test.go is its specification.
func decide(err error, failures int, p RetryPolicy, random float64) verdict {
	var wish *outcomeError
	if errors.As(err, &wish) {
		switch wish.outcome {
		case permanent:
			return verdict{action: park, reason: bus.ReasonPermanent}
		case undecodable:
			return verdict{action: park, reason: bus.ReasonDecode}
		case expired:
			return verdict{action: park, reason: bus.ReasonExpired}
		case retryAfter:
			if failures < p.MaxAttempts {
				return verdict{action: retry, delay: max(wish.after, 0)}
			}
		}
	}
	if failures >= p.MaxAttempts {
		return verdict{action: park, reason: bus.ReasonExhausted}
	}
	return verdict{action: retry, delay: backoff(p, failures-1, random)}
}

// backoff is full jitter: uniform in [0, min(MaxDelay, BaseDelay * 2^n)], so
// that events which failed together do not come back together.
func backoff(p RetryPolicy, n int, random float64) time.Duration {
	ceiling := p.MaxDelay
	// Compared before shifting: BaseDelay << n alone overflows from n = 63 on at the latest.
	if p.BaseDelay <= p.MaxDelay>>n {
		ceiling = p.BaseDelay << n
	}
	return time.Duration(random * float64(ceiling))
}
