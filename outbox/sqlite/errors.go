package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// ErrQueue is returned when a writer has waited a minute for the other writers
// of its process: most likely for a transaction of its own.
var ErrQueue = errors.New("sqlite: another transaction of this process has been open for too long")

// ErrDisk is returned to whoever writes, once a sync to disk has failed. What was
// committed before may be lost with the next loss of power; only opening the
// database anew tells what is there.
var ErrDisk = errors.New("sqlite: the disk does not take what was committed")

// errRolledBack is returned to whoever goes on in a transaction that SQLite has
// ended. outbox.Ledger knows it by the error that it wraps.
var errRolledBack = fmt.Errorf("sqlite: a statement that failed, or ended it, has taken the transaction along: begin another one: %w", sql.ErrTxDone)

var errReadOnly = errors.New("the file or its directory is read-only")

// code is SQLite's extended result code, or 0.
func code(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code()
}

// isBusy reports that somebody else had locked the database, that nothing was done,
// and that trying again can help.
func isBusy(err error) bool {
	c := code(err)
	return c == lib.SQLITE_BUSY || c == lib.SQLITE_BUSY_RECOVERY
}

// explain returns why a file cannot be opened. The driver only says that it cannot.
func explain(err error, path string) error {
	switch code(err) & 0xff {
	case lib.SQLITE_CANTOPEN:
		// SQLite has just tried the same.
		f, reason := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		switch {
		case reason == nil:
			return errors.Join(err, f.Close())
		case errors.Is(reason, fs.ErrNotExist):
			return fmt.Errorf("its directory does not exist: %w", reason)
		default:
			return reason
		}
	case lib.SQLITE_NOTADB:
		return fmt.Errorf("it is not a SQLite database: %w", err)
	case lib.SQLITE_READONLY:
		return errReadOnly
	}
	return err
}
