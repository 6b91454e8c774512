package consumer

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/text"
)

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

func (c *Consumer) story(d *delivery, claim *dedup.Claim, final *event.Attempt, reason string) dlq.Story {
	attempts, failures := claim.Attempts, claim.Failures
	if final != nil {
		attempts, failures = append(slices.Clone(attempts), *final), failures+1
	}
	return dlq.Story{
		Consumer: c.cfg.Name, Reason: reason, Key: d.key,
		Attempts: attempts, Failures: failures, Crashes: claim.Crashes,
		Host: c.host, Version: c.cfg.Version, At: time.Now().UTC(),
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
