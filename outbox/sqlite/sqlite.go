// Package sqlite opens SQLite databases for package outbox, with a driver in
// pure Go.
//
// SQLite has one writer at a time. By itself it lets whoever finds the file locked
// try again after a while, so that some of many starve. Here the writers of one
// process queue, first come, first served: transactions, and statements that write
// outside of one. Processes let each other in by a lock on a file beside the database,
// as in orders.db-queue; between processes it is fair by chance. Readers wait for nobody.
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

// The limits of the pool that [Open] returns. To open a connection again and again
// costs more than to leave it idle.
const (
	maxIdle     = 64
	maxIdleTime = time.Minute
)

// otherProcesses is how long SQLite waits for the writers of other processes.
const otherProcesses = 10 * time.Second

// checkpointPages is how long the log gets, 16 MiB, before a commit brings it into the
// database. A row of the outbox changes three times within seconds; so the database
// takes it once.
const checkpointPages = 4096

// Open opens the file at path. If there is none it makes one, for its owner alone
// (mode 0600); the directory has to exist. The database is in WAL mode and foreign keys
// are enforced.
//
// A commit returns when it is on disk: it survives a loss of power. Commits that are
// ready at the same time share a sync; SQLite's own setting is synchronous NORMAL for
// that. A transaction that only reads, or is rolled back, returns from its end when
// what it has read is on disk.
//
// Transactions begin IMMEDIATE: one that reads and then writes cannot fail for what
// others wrote in between. Those begun with [sql.TxOptions].ReadOnly begin DEFERRED and
// do not queue. A writer waits until its context ends, but at most
//
//   - 10 s for other processes: then the error is SQLite's "database is locked";
//   - a minute for other writers of its process: then the error matches [ErrQueue].
//
// Whoever has a transaction open and writes beside it, not in it, waits for itself.
// After a sync that has failed all writers get [ErrDisk].
//
// A statement that fails can take its whole transaction along: one whose context
// ends while it runs, a full disk, ON CONFLICT ROLLBACK. What comes next in that
// transaction fails then, as does Commit, with an error that matches [sql.ErrTxDone].
//
// The error of Open matches [outbox.ErrDatabase], or [outbox.ErrConfig] if path cannot
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
	// SQLite would let everybody read a file that it makes; what it puts beside the
	// database gets the database's mode. A file that exists is not opened here: closing
	// it would end the locks of this process's other connections. If this fails, check
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

// fileName returns the absolute path: the pool opens the same file after a change of
// directory. Names of databases in memory are refused.
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

// dataSource returns the driver's name of a file, whatever characters its path has.
func dataSource(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") { // C:/x
		path = "/" + path
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", otherProcesses.Milliseconds()), "journal_mode(WAL)", "synchronous(NORMAL)",
			fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages), "foreign_keys(1)",
		},
	}.Encode()}
	return u.String()
}

// check opens the first connection, so that Open returns what is wrong with the file.
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
