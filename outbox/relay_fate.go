package outbox

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/text"
)

// fate is what becomes of a row that was claimed.
type fate struct {
	status Status // Published, Pending or DeadLetter
	// blamed says that the row is at fault: an attempt is spent.
	blamed bool
	// waits says that the row is held back for delay, and its key with it.
	waits bool
	delay time.Duration
}

// decide says what becomes of a row. attempts are those before this one, age is
// how long ago it was written, random is uniform in [0, 1]. It is pure: the table
// in relay_fate_test.go is its specification.
func decide(err error, attempts int, age time.Duration, cfg RelayConfig, random float64) fate {
	switch {
	case err == nil:
		return fate{status: Published}
	case errors.Is(err, errUnsent):
		return fate{status: Pending}
	case classOf(err) == "":
		// Nobody counts these failures. What has waited for long can wait for as
		// long again: delays grow as if they doubled.
		return fate{status: Pending, waits: true, delay: scale(min(max(age, cfg.BaseDelay), cfg.MaxDelay), random)}
	case attempts+1 >= cfg.MaxAttempts:
		return fate{status: DeadLetter, blamed: true}
	}
	ceiling := cfg.MaxDelay
	if cfg.BaseDelay <= cfg.MaxDelay>>attempts { // shifted this way nothing overflows
		ceiling = cfg.BaseDelay << attempts
	}
	return fate{status: Pending, blamed: true, waits: true, delay: scale(ceiling, random)}
}

func scale(d time.Duration, by float64) time.Duration { return time.Duration(by * float64(d)) }

// classOf names the fault of a row; "" when the row cannot be blamed: nobody was
// there to take it, or not yet, or not from this user. What is not known to be an
// outage is the row's fault: a row that is tried for ever holds its key for ever.
func classOf(err error) string {
	switch {
	case errors.Is(err, errUnreadable):
		return "unreadable"
	case errors.Is(err, event.ErrNotAdmitted):
		return "not-admitted"
	case errors.Is(err, errNowhere):
		return "no-stream"
	case errors.Is(err, errSilence):
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

// tell adds a failed attempt to a row's story. One that cannot be read, because
// somebody else has written it, begins anew.
func tell(story string, number int, err error, status Status, at time.Time, host string) string {
	var attempts []event.Attempt
	if json.Unmarshal([]byte(story), &attempts) != nil {
		attempts = nil
	}
	a := event.Attempt{
		Number: number, At: at.UTC(), Class: classOf(err),
		Error: text.Cut(strings.ToValidUTF8(err.Error(), "\uFFFD"), event.MaxErrorText), Host: host,
	}
	if status == DeadLetter {
		a.Reason = event.ReasonExhausted
	}
	told, err := json.Marshal(append(attempts, a))
	if err != nil {
		return "[]"
	}
	return string(told)
}
