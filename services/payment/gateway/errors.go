package gateway

import "errors"

var (
	// ErrCorrupt is returned by New when a line of the journal cannot be read or
	// contradicts another. An incomplete last line is cut off instead: its request
	// was never answered.
	ErrCorrupt = errors.New("gateway: corrupt journal")
	// ErrFaults is returned by SetFaults when a setting is wrong.
	ErrFaults = errors.New("gateway: invalid faults")
	// ErrClosed is returned for a change of the books after Close, and after a
	// write of the journal failed: it is then unknown what is on disk.
	ErrClosed = errors.New("gateway: books are closed")

	// errKeyReused is answered with 422.
	errKeyReused = errors.New("gateway: idempotency key was used with another body")
	// errVoided is answered with 409.
	errVoided = errors.New("gateway: voided")
)
