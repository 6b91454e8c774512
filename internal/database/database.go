// Package database opens the database that a flag or variable names, SQLite or
// Postgres: the one place where a program chooses.
package database

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
	"github.com/farandole/farandole/outbox/postgres/cdc"
	"github.com/farandole/farandole/outbox/sqlite"
)

// ErrNoFeed is returned when a database has no change data capture.
var ErrNoFeed = errors.New("database: only Postgres has change data capture")

// Database is an open database. Whoever opened it closes it.
type Database struct {
	DB      *sql.DB
	Dialect outbox.Dialect
	target  string
}

// Open opens a Postgres database if target is a URL of the scheme postgres or
// postgresql, else the SQLite file of that name, which is created if it is not
// there; its directory has to be. Postgres is not dialled before it is used.
// Errors are those of [postgres.Open] and [sqlite.Open].
func Open(target string) (*Database, error) {
	d := &Database{Dialect: outbox.SQLite, target: target}
	open := sqlite.Open
	if IsURL(target) {
		d.Dialect, open = outbox.Postgres, postgres.Open
	}
	var err error
	d.DB, err = open(target)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// IsURL reports whether target names a Postgres database, not a file.
func IsURL(target string) bool {
	return strings.HasPrefix(target, "postgres://") || strings.HasPrefix(target, "postgresql://")
}

// Outbox returns an outbox of this database; it fills in cfg.Dialect. The error
// matches [outbox.ErrConfig].
func (d *Database) Outbox(cfg outbox.Config) (*outbox.Outbox, error) {
	cfg.Dialect = d.Dialect
	return outbox.New(d.DB, cfg)
}

// Feed returns what a relay of o follows instead of claiming rows: Postgres's own
// log, through the replication slot of that name. Errors match [ErrNoFeed] for
// other databases, or [outbox.ErrConfig].
func (d *Database) Feed(o *outbox.Outbox, slot string, metrics prometheus.Registerer, log zerolog.Logger) (outbox.Feed, error) {
	if d.Dialect != outbox.Postgres {
		return nil, ErrNoFeed
	}
	return cdc.New(d.target, o, cdc.Config{Slot: slot, Metrics: metrics, Logger: log})
}

// Close closes the connections; transactions that are open end with an error.
func (d *Database) Close() error { return d.DB.Close() }
