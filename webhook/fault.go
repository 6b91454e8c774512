package webhook

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/farandole/farandole/consumer"
)

// faultOf is the error of a delivery by its answer: nil when the receiver has
// the event. longest bounds a Retry-After. It is pure: the table in
// fault_test.go is its specification, docs/webhooks.md shows it to users.
func faultOf(a answer, now time.Time, longest time.Duration) error {
	err := &statusError{status: a.status, body: string(a.body)}
	switch a.status / 100 {
	case 2:
		return nil
	case 3:
		err.note = "redirect not followed"
		return consumer.Permanent(err)
	case 4:
		if !slices.Contains(passing(), a.status) {
			return consumer.Permanent(err)
		}
	}
	if after := retryAfter(a.header.Get("Retry-After"), now, longest); after > 0 {
		return consumer.RetryAfter(err, after)
	}
	return err
}

// passing are the 4xx statuses after which the same request can succeed later.
// After the others it cannot: a person has to mend the request or the receiver,
// and then replays the dead letters.
func passing() []int {
	return []int{
		http.StatusRequestTimeout,
		// A receiver that honours Idempotency-Key says so while an earlier
		// delivery of the event is still being worked on: one that timed out.
		http.StatusConflict,
		http.StatusMisdirectedRequest, // another connection may lead elsewhere
		http.StatusTooEarly,
		http.StatusTooManyRequests,
	}
}

// retryAfter reads a Retry-After header, seconds or a date. It is 0 when the
// header says nothing, and at most longest.
func retryAfter(value string, now time.Time, longest time.Duration) time.Duration {
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseUint(value, 10, 63); err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(min(n, math.MaxInt64/uint64(time.Second)))*time.Second, longest)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), longest)
}
