package fleet

import "errors"

var (
	// ErrConfig is returned by New and Force when a setting is wrong.
	ErrConfig = errors.New("fleet: configuration")
	// ErrUnknown is returned by Force when no process of the consumer has ever shared
	// a breaker of that name.
	ErrUnknown = errors.New("fleet: no such breaker")
)
