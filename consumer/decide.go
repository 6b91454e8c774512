package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farandole/farandole/event"
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
// (counted from 1). random is uniform in [0, 1] over events, see [draw]. It is pure: the table in
// decide_test.go is its specification.
func decide(err error, failures int, p RetryPolicy, random float64) verdict {
	var atLeast time.Duration
	if wish := wishOf(err); wish != nil {
		switch wish.outcome {
		case permanent:
			return verdict{action: park, reason: event.ReasonPermanent}
		case undecodable:
			return verdict{action: park, reason: event.ReasonDecode}
		case expired:
			return verdict{action: park, reason: event.ReasonExpired}
		case retryAfter:
			atLeast = wish.after
		}
	}
	if failures >= p.MaxAttempts {
		return verdict{action: park, reason: event.ReasonExhausted}
	}
	return verdict{action: retry, delay: max(atLeast, backoff(p, failures-1, random))}
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

// draw is an event's place in its jitter intervals, uniform over events and
// the same on every replica: u for all its retries but the last, 1-u for that.
// Each delay on its own is full jitter, so events that failed together do not
// come back together; but an event that drew short delays draws a long last
// one. The attempts of k retries thus always last at least (2^(k-1) - 1) times
// the base delay (below the cap): independent draws would now and then spend
// them all within a moment of an outage.
func draw(key event.EventKey, replay, failures int, p RetryPolicy) float64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", key, replay))
	u := float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53)
	if failures == p.MaxAttempts-1 {
		return 1 - u
	}
	return u
}
