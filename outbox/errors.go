package outbox

import "errors"

var (
	// ErrConfig is returned when a configuration cannot work; the text says
	// which field and why.
	ErrConfig = errors.New("outbox: configuration")
	// ErrDuplicate is returned by Add for an event whose id the outbox holds
	// already. Nothing was written for it; the transaction goes on working.
	ErrDuplicate = errors.New("outbox: event is in the outbox already")
	// ErrSchema is returned when the tables are missing or newer than this program.
	ErrSchema = errors.New("outbox: tables")
	// ErrDatabase is returned when the database cannot be reached or refuses a
	// statement; the driver's error is wrapped.
	ErrDatabase = errors.New("outbox: database")
)
