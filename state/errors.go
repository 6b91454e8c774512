package state

import "errors"

var (
	// ErrDecode is returned when a stored document is not JSON of the store's type.
	ErrDecode = errors.New("state: cannot decode")
	// ErrLost is returned when a seeded document does not exist any more: the event
	// stream was purged, created again or restored from an old backup. It stays
	// until somebody restores the stream or stores the document with [Store.Create].
	// It also matches [bus.ErrUnavailable].
	ErrLost = errors.New("state: document is lost")
	// ErrChange is returned for changes that can never be stored: a value that cannot
	// be encoded as JSON, a document that one step changes twice, or a store whose
	// ledger is not the consumer's.
	ErrChange = errors.New("state: impossible change")
)
