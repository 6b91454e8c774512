package main

import (
	"errors"
	"fmt"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// errSilent ends the program with exit code 1. What went wrong has been printed.
var errSilent = errors.New("failed")

// exitError is an error with an exit code of its own.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

// usageError is a mistake on the command line that the parser does not find: exit
// code 2.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usageErrorf(format string, args ...any) error {
	return usageError{fmt.Sprintf(format, args...)}
}

// isUsage reports whether the command line is wrong: the error would be the same on
// every system.
func isUsage(err error) bool {
	var usage usageError
	for _, sentinel := range []error{dlq.ErrSelection, event.ErrInvalidType, event.ErrInvalidEvent, event.ErrInvalidName} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return errors.As(err, &usage)
}

// advice says what to do about an error, if the error's own text does not.
func advice(err error) string {
	for _, a := range []struct {
		is   error
		text string
	}{
		{bus.ErrNoStream, `"farandole topology apply" creates what is missing`},
		{bus.ErrDenied, "the NATS user lacks this permission"},
		{bus.ErrStreamFull, "raise the stream's limits or remove messages"},
		{bus.ErrUnavailable, "whether it took effect is unknown; trying again is safe"},
		{dlq.ErrNotFound, `"farandole dlq list" shows the ids`},
		{dlq.ErrAmbiguous, "name one of them"},
		{dlq.ErrRefused, "--force overrides it"},
		{dlq.ErrNobody, "start one, or take the replays back by --cancel"},
		{dlq.ErrFailedAgain, "the rest is not replayed"},
	} {
		if errors.Is(err, a.is) {
			return ": " + a.text
		}
	}
	return ""
}
