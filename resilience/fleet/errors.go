package fleet

import "errors"

var (
	// ErrConfig is returned by New when a setting is wrong.
	ErrConfig = errors.New("fleet: configuration")
	// ErrNoBreaker is returned for a breaker that no process of the consumer has told of.
	ErrNoBreaker = errors.New("fleet: no breaker")
)
