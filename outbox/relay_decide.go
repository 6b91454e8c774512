package outbox

import (
	"errors"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/text"
)

// decision is what becomes of a row after a try to publish it.
type decision struct {
	status Status // Published, Pending or DeadLetter
	// blamed says that the row is at fault: an attempt is spent.
	blamed bool
	// waits says that the row is held back for delay, and its key with it.
	waits bool
	delay time.Duration
}

// decide says what becomes of a row whose try has ended with err. attempts are those
// before this one, age is how long ago the row was written, random is uniform in
// [0, 1]. It is pure: the table in relay_decide_test.go is its specification.
func decide(err error, attempts int, age time.Duration, cfg RelayConfig, random float64) decision {
	switch {
	case err == nil:
		return decision{status: Published}
	case errors.Is(err, errUnsent):
		return decision{status: Pending}
	case classOf(err) == "":
		// These failures are not counted. A row that has waited for long can wait for
		// as long again, so the delays grow as if they doubled.
		return decision{status: Pending, waits: true, delay: backoff.FullJitter(max(age, cfg.BaseDelay), cfg.MaxDelay, 0, random)}
	case attempts+1 >= cfg.MaxAttempts:
		return decision{status: DeadLetter, blamed: true}
	}
	return decision{status: Pending, blamed: true, waits: true, delay: backoff.FullJitter(cfg.BaseDelay, cfg.MaxDelay, attempts, random)}
}

// classOf names the fault of a row, as in "too-large". It returns "" during an outage:
// nobody takes the row, or not yet, or not from this user. What is not known to be an
// outage is the row's fault: a row that is tried for ever holds its key for ever.
func classOf(err error) string {
	switch {
	case errors.Is(err, errUnreadable):
		return "unreadable"
	case errors.Is(err, event.ErrNotAdmitted):
		return "not-admitted"
	case errors.Is(err, errNotStored):
		return "no-stream"
	case errors.Is(err, errUnanswered):
		return "unanswered"
	case errors.Is(err, bus.ErrIDTaken):
		return "id-taken"
	case errors.Is(err, bus.ErrTooLarge):
		return "too-large"
	case errors.Is(err, bus.ErrRefused):
		return "refused"
	}
	for _, outage := range []error{errUnsent, bus.ErrUnavailable, bus.ErrClosed, bus.ErrDenied, bus.ErrNoStream, bus.ErrStreamFull, bus.ErrBusy} {
		if errors.Is(err, outage) {
			return ""
		}
	}
	return "other"
}

// addAttempt adds a failed attempt to a row's story.
func addAttempt(column string, number int, err error, status Status, at time.Time, host string) string {
	a := event.Attempt{
		Number: number, At: at.UTC(), Class: classOf(err),
		Error: text.Cut(strings.ToValidUTF8(err.Error(), "\uFFFD"), event.MaxErrorText), Host: host,
	}
	if status == DeadLetter {
		a.Reason = event.ReasonExhausted
	}
	column, err = append(readStory(column), chapter{Attempt: a}).column()
	if err != nil {
		return "[]"
	}
	return column
}
