package cdc

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/farandole/farandole/outbox"
)

// ErrSetup is returned when the server or the role is not set up for a feed:
// wal_level is not logical, no replication slot is free, the role lacks a
// right, the slot belongs to another database. The text says what to change.
var ErrSetup = errors.New("cdc: the server is not set up for change data capture")

// Postgres's error codes.
const (
	codeInUse           = "55006" // the slot is read by somebody else
	codeUndefinedObject = "42704"
	codeDuplicateObject = "42710"
	codeNotReady        = "55000" // wal_level
	codeNoRight         = "42501"
	codeNoSlot          = "53400" // max_replication_slots
	codeNoSender        = "53300" // max_wal_senders
)

// code is Postgres's code of an error, empty for one that is not Postgres's.
func code(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// explain gives an error its sentinel, and the server's hint.
func explain(err error) error {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &e):
		return fmt.Errorf("%w: %w", outbox.ErrDatabase, err)
	}
	if e.Hint != "" {
		err = fmt.Errorf("%w: %s", err, e.Hint)
	}
	switch e.Code {
	case codeInUse:
		return fmt.Errorf("%w: %w", outbox.ErrFeedTaken, err)
	case codeNotReady, codeNoRight, codeNoSlot, codeNoSender:
		return fmt.Errorf("%w: %w", ErrSetup, err)
	default:
		return fmt.Errorf("%w: %w", outbox.ErrDatabase, err)
	}
}
