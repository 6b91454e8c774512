package dlq

import (
	"errors"
	"fmt"
	"strings"
)

// Besides these, errors match [bus.ErrNoStream] when the dead-letter stream
// does not exist, [bus.ErrUnavailable] when the server did not answer, and
// [bus.ErrTooLarge] when a message does not fit the server.
var (
	// ErrNotFound is returned when neither the queue nor the ledger knows the id.
	ErrNotFound = errors.New("dlq: not found")
	// ErrAmbiguous is returned when a short id, or an event key without a consumer, names
	// several letters; the text lists them.
	ErrAmbiguous = errors.New("dlq: ambiguous id")
	// ErrSelection is returned when a selection names nothing, names letters in
	// two ways at once, or holds an illegal id.
	ErrSelection = errors.New("dlq: selection")
	// ErrRefused is returned when nothing confirms that the event did not take
	// effect: its mark has left the ledger. ReplayOptions.Force overrides it.
	ErrRefused = errors.New("dlq: refused")
	// ErrNoConsumer is returned when nobody would get a replay: no durable of
	// the letter's consumer takes redrives. ReplayOptions.Force overrides it.
	ErrNoConsumer = errors.New("dlq: no consumer")
	// ErrNobody is returned by a replay that waits, when no worker is there for what is
	// left. The letters say that they are being replayed.
	ErrNobody = errors.New("dlq: nobody is there")
	// ErrFailedAgain is returned by a canary that stops because too many events have
	// failed again.
	ErrFailedAgain = errors.New("dlq: too many have failed again")
)

// Ambiguous returns the error of an id that names several letters.
func Ambiguous(id string, letters []string) error {
	const most = 10
	more := ""
	if n := len(letters) - most; n > 0 {
		letters, more = letters[:most], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w: %s is one of %s%s", ErrAmbiguous, id, strings.Join(letters, ", "), more)
}

func invalidID(id string) error {
	return fmt.Errorf("%w: id %q: want <consumer>.<event key>, or an event key, or how they begin", ErrSelection, id)
}

func invalid(what, value string) error {
	return fmt.Errorf("%w: %s %q is not one subject token", ErrSelection, what, value)
}
