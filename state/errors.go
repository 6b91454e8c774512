package state

import "errors"

var (
	// ErrDecode is returned when a stored document is not what it should be.
	ErrDecode = errors.New("state: cannot decode")
	// ErrChange is returned for changes that no step can make: a value that is
	// no JSON, a document changed twice, or a store with another ledger.
	ErrChange = errors.New("state: impossible change")
)
