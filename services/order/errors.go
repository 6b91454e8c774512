package order

import "errors"

var (
	// ErrNotReady is returned by [Service.Health] while the service has not
	// seen to its tables.
	ErrNotReady = errors.New("order: not ready")
	// ErrTables is returned when the tables cannot be made, read or written;
	// the driver's error is wrapped.
	ErrTables = errors.New("order: tables")
	// ErrUnknownOrder is matched by the error of a reaction to an event about
	// an order that has no row (yet).
	ErrUnknownOrder = errors.New("unknown order")
)

// Refusals of a request; each becomes a problem document.
var (
	errNotFound   = errors.New("order: no such order")
	errFull       = errors.New("order: too many orders are under way")
	errKeyReused  = errors.New("order: idempotency key was used for another request")
	errFinal      = errors.New("order: is final")
	errUnreadable = errors.New("order: row is unreadable")
)

// errDeleted is why an order that was there is not there a moment later.
var errDeleted = errors.New("the row has just been deleted")
