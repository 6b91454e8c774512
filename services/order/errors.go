package order

import "errors"

var (
	// ErrNotReady is returned by [Service.Health] while the service has not
	// opened its bucket.
	ErrNotReady = errors.New("order: not ready")
	// ErrUnknownOrder is matched by the error of a reaction to an event about
	// an order that has no record (yet).
	ErrUnknownOrder = errors.New("unknown order")
)

// Refusals of a request; each becomes a problem document.
var (
	errNotFound  = errors.New("order: no such order")
	errKeyReused = errors.New("order: idempotency key was used for another request")
	errFinal     = errors.New("order: is final")
)
