// Package sqlite opens SQLite databases for package outbox, with a driver in
// pure Go.
//
// SQLite has one writer at a time, and whoever finds the file locked tries again
// after a while: among many some starve. Here the writers of one process queue
// first come, first served: transactions, and statements outside of one that
// write. Processes let each other in by a lock on a file beside the database,
// path-queue; between them it is fair by chance. Readers wait for nobody.
package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/farandole/farandole/outbox"
)

// The limits of a pool that [Open] returns: a connection that is opened again
// and again costs more than one that lies idle.
const (
	maxIdle     = 64
	maxIdleTime = time.Minute
)

// checkpointPages is how long the log gets before a commit brings it into the
// database, 16 MiB: a row of the outbox changes three times within seconds, and
// is written once then.
const checkpointPages = 4096

// Open opens the file, which it creates if it is not there, for its owner alone
// (mode 0600); its directory has to be. The database is in WAL mode, foreign keys are enforced, and a commit returns
// when it is on disk: it survives a loss of power. Commits that are ready at the
// same time share a sync (SQLite's own setting is therefore synchronous NORMAL).
// A transaction that ends, also one that only reads or is rolled back, returns
// when what it has read is on disk.
//
// Transactions begin IMMEDIATE, so that one which reads and then writes cannot
// fail for what others wrote in between; those begun with [sql.TxOptions].ReadOnly
// begin DEFERRED and do not queue. A writer waits until its context ends: for
// other processes at most 10 s, after which the error is SQLite's "database is
// locked", and for this process at most a minute, after which it matches
// [ErrQueue]. After a sync that failed all writers get [ErrDisk]. Whoever writes to the database beside a transaction it has open,
// and not in it, waits for itself.
//
// A statement that fails can take its whole transaction along: one whose context
// ends while it runs, a full disk, ON CONFLICT ROLLBACK. What comes next in that
// transaction fails then, as does Commit, with an error that matches [sql.ErrTxDone].
//
// The error matches [outbox.ErrDatabase], or [outbox.ErrConfig] if path cannot
// name a file.
func Open(path string) (*sql.DB, error) {
	name, err := fileName(path)
	if err != nil {
		return nil, err
	}
	c, err := newConnector(name)
	if err != nil {
		return nil, fmt.Errorf("%w: sqlite: %w", outbox.ErrConfig, err)
	}
	// SQLite would let everybody read a file that it makes. What it puts beside
	// the database has the same mode. Not a file that is there: to close it would
	// end the locks of this process's other connections. If making it fails, check
	// says why in better words.
	if f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		f.Close() //nolint:errcheck // nothing was written
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(maxIdle)
	db.SetConnMaxIdleTime(maxIdleTime)
	if err = check(db, path); err == nil {
		err = c.openGate(name)
	}
	if err != nil {
		db.Close() //nolint:errcheck // what is wrong is known
		return nil, fmt.Errorf("%w: sqlite: open %s: %w", outbox.ErrDatabase, path, err)
	}
	return db, nil
}

// fileName is the absolute path: a change of directory must not open another
// file, and none is read as the name of something in memory.
func fileName(path string) (string, error) {
	if path == "" || strings.ContainsRune(path, 0) || strings.HasPrefix(path, ":memory:") {
		return "", fmt.Errorf("%w: sqlite: path %q: want the name of a file", outbox.ErrConfig, path)
	}
	name, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%w: sqlite: path %s: %w", outbox.ErrConfig, path, err)
	}
	return name, nil
}

// dataSource is the driver's name of a file, whatever characters its path has.
func dataSource(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") { // C:/x
		path = "/" + path
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", tryFor.Milliseconds()), "journal_mode(WAL)", "synchronous(NORMAL)",
			fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages), "foreign_keys(1)",
		},
	}.Encode()}
	return u.String()
}

// check opens the first connection, so that what is wrong with the file shows
// now, and in words.
func check(db *sql.DB, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), otherProcesses)
	defer cancel()
	if err := probe(ctx, db); err != nil {
		return explain(err, path)
	}
	return nil
}

func probe(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	return conn.Raw(func(c any) error {
		readOnly, err := c.(*connection).IsReadOnly("main")
		if err == nil && readOnly {
			return errReadOnly
		}
		return err
	})
}
