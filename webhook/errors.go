package webhook

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/farandole/farandole/resilience"
)

var (
	// ErrConfig is returned by New when a setting is wrong.
	ErrConfig = errors.New("webhook: configuration")
	// ErrReceiver is matched by every failure of a delivery.
	ErrReceiver = errors.New("webhook: receiver")
	// ErrTimeout is matched when the receiver did not answer within
	// Config.Timeout; whether it has taken the event is then unknown.
	ErrTimeout = resilience.ErrTimeout
)

// statusError tells an answer that is not a success. It has a type of its own
// so that dead letters name it as their class.
type statusError struct {
	status int
	// note says what the status alone does not.
	note string
	body string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s: %d %s", ErrReceiver.Error(), e.status, http.StatusText(e.status))
	if e.note != "" {
		text += ": " + e.note
	}
	if e.body != "" {
		text += fmt.Sprintf(": %q", e.body)
	}
	return text
}

// Is makes the error match [ErrReceiver].
func (e *statusError) Is(target error) bool { return target == ErrReceiver }
