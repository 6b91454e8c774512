package resilience

import (
	"context"
	"errors"
	"net/http"
)

// Outcome is what the end of a call says about the dependency.
type Outcome int

const (
	// Neutral says nothing: the caller gave up, or the call did not get there. A
	// probe's permit is free again.
	Neutral Outcome = iota
	// Success says that the dependency works. That it refused the request for a
	// reason of the request's own (a 4xx status, a business error) is an answer, too.
	Success
	// Failure says that the dependency does not work: no answer in time, a broken
	// connection, a 5xx status, 429.
	Failure
)

const outcomes = int(Failure) + 1

// String returns the outcome's metric label.
func (o Outcome) String() string {
	switch o {
	case Success:
		return "success"
	case Failure:
		return "failure"
	default:
		return "neutral"
	}
}

// Classifier says what the error of a call means. err is nil if the call succeeded.
type Classifier func(err error) Outcome

// Classify is the default [Classifier].
//
//   - nil is a success.
//   - [ErrTimeout] is a failure, and so is any error that is not named here: no
//     connection, no answer.
//   - What [ErrOpen], [ErrFull] and [ErrLimited] match is neutral: the call did not get there.
//   - context.Canceled is neutral.
//   - An error with the method Final() bool that returns true is a success: the
//     dependency answered, and would answer the same again. Those of
//     consumer.Permanent and consumer.Skip have it.
//   - An error with the method StatusCode() int is a failure from 500 on and at 429,
//     else a success.
func Classify(err error) Outcome {
	if err == nil {
		return Success // before the targets below, which cost two allocations
	}
	var final interface{ Final() bool }
	var status interface{ StatusCode() int }
	switch {
	case errors.Is(err, ErrTimeout):
		return Failure
	case isRejection(err), errors.Is(err, context.Canceled):
		return Neutral
	case errors.As(err, &final) && final.Final():
		return Success
	case errors.As(err, &status):
		return classifyStatus(status.StatusCode())
	default:
		return Failure
	}
}

func classifyStatus(status int) Outcome {
	if status >= http.StatusInternalServerError || status == http.StatusTooManyRequests {
		return Failure
	}
	return Success
}

// isRejection says that the call was not made.
func isRejection(err error) bool {
	return errors.Is(err, ErrOpen) || errors.Is(err, ErrFull) || errors.Is(err, ErrLimited)
}
