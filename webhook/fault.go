package webhook

import (
	"net/http"
	"slices"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/resilience"
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
	if after := resilience.RetryAfter(a.header.Get("Retry-After"), now); after > 0 {
		return consumer.RetryAfter(err, min(after, longest))
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
