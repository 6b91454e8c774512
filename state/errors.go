package state

import "errors"

var (
	// ErrDecode is returned when a stored document is not what it should be.
	ErrDecode = errors.New("state: cannot decode")
	// ErrLost is returned for a document that has to exist and does not: the
	// event stream was purged, made anew or restored from an old copy. Nothing is
	// made of that until a person says so. It also matches [bus.ErrUnavailable].
	ErrLost = errors.New("state: document is lost")
	// ErrChange is returned for changes that no step can make: a value that is
	// no JSON, a document changed twice, or a store with another ledger.
	ErrChange = errors.New("state: impossible change")
)
