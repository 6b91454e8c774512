// Package postgres opens Postgres databases for package outbox, with pgx.
package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres/internal/target"
)

// The limits of the pool that [Open] returns.
const (
	// maxOpen lets three processes share the 100 connections that a Postgres takes
	// by default, each with some beside the pool. More would wait for each other: a
	// server works on about as many transactions as it has processors. As many stay
	// open while they are idle: a new connection costs the server a process, a
	// hundred times what most transactions cost.
	maxOpen     = 24
	maxIdleTime = 5 * time.Minute
	// maxLifetime lets connections move to another server behind one name.
	maxLifetime = time.Hour
)

// Open returns a pool of connections to a database named by a URL or a keyword
// string, as libpq takes them; what it does not say comes from libpq's
// environment variables (PGHOST, PGPASSWORD, ...). It does no I/O.
//
// The pool has at most 24 connections. It closes those that were idle for five minutes,
// or open for an hour. The methods of [sql.DB] change that. So three processes fit into
// the 100 connections that a server takes by default. [outbox.Ledger] says how handlers
// share them. Unless url says otherwise, application_name
// is "farandole" and a connection must be there within 10 s.
//
// The error matches [outbox.ErrConfig]. Neither it nor the errors of connecting show a
// password.
func Open(url string) (*sql.DB, error) {
	cfg, err := target.Parse(url)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(maxOpen)
	db.SetMaxIdleConns(maxOpen)
	db.SetConnMaxIdleTime(maxIdleTime)
	db.SetConnMaxLifetime(maxLifetime)
	return db, nil
}

// Tx lets [outbox.Outbox.Add] write into a transaction of pgx's own interface.
func Tx(tx pgx.Tx) outbox.Execer { return pgxTx{tx} }

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}
