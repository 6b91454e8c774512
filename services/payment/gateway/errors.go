package gateway

import "errors"

var (
	// ErrCorrupt is returned by New when the journal holds something else than
	// whole, consistent lines. A torn last line is not that: it was never answered.
	ErrCorrupt = errors.New("gateway: corrupt journal")
	// ErrFaults is returned when faults are not well-formed.
	ErrFaults = errors.New("gateway: invalid faults")
	// ErrClosed is returned for changes of the books after Close, or after the
	// journal could not be written: what is on disk is then unknown.
	ErrClosed = errors.New("gateway: books are closed")

	// errKeyReused is answered with 422.
	errKeyReused = errors.New("gateway: idempotency key was used with another body")
	// errVoided is answered with 409.
	errVoided = errors.New("gateway: voided")
)
