package order

import "errors"

var (
	// ErrNotReady is returned by [Service.Health] until Run has created or migrated
	// the tables.
	ErrNotReady = errors.New("order: not ready")
	// ErrTables is returned when the tables cannot be created, read or written. It
	// wraps the driver's error.
	ErrTables = errors.New("order: tables")
	// ErrUnknownOrder is matched by the error of a handler whose event is about an
	// order that has no row, or not yet.
	ErrUnknownOrder = errors.New("unknown order")
)

// Errors of a request. Each is answered with a problem document.
var (
	errNotFound   = errors.New("order: no such order")
	errFull       = errors.New("order: too many orders are under way")
	errFinal      = errors.New("order: is final")
	errUnreadable = errors.New("order: row is unreadable")
)
