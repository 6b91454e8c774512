package idempotency

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"github.com/farandole/farandole/internal/migrate"
	"github.com/farandole/farandole/outbox"
)

//go:embed migrations
var migrations embed.FS

// SQL is a store in the table idempotency of a database, SQLite or Postgres.
type SQL struct {
	db      *sql.DB
	dialect outbox.Dialect
	say     statements
	swept   atomic.Int64 // when the forgotten were last removed, by the local clock
}

var _ Store = (*SQL)(nil)

// statements are what the store says to its database.
type statements struct{ begin, look, complete, release, sweep string }

// NewSQL returns a store. Call [SQL.Migrate] before it is used. The error matches
// [ErrConfig].
func NewSQL(db *sql.DB, dialect outbox.Dialect) (*SQL, error) {
	now := "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
	switch {
	case db == nil:
		return nil, fmt.Errorf("%w: the database is missing", ErrConfig)
	case dialect == outbox.Postgres:
		now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
	case dialect != outbox.SQLite:
		return nil, fmt.Errorf("%w: dialect %d: want outbox.SQLite or outbox.Postgres", ErrConfig, dialect)
	}
	say := func(statement string) string { return strings.ReplaceAll(statement, "{now}", now) }
	return &SQL{db: db, dialect: dialect, say: statements{
		begin: say(`INSERT INTO idempotency AS i (key, fingerprint, owner, until, expires)
			VALUES ($1, $2, $3, {now} + CAST($4 AS BIGINT), {now} + CAST($5 AS BIGINT))
			ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, owner = excluded.owner,
				until = excluded.until, expires = excluded.expires, answer = NULL
			WHERE i.expires <= {now} OR i.answer IS NULL AND i.until <= {now} AND i.fingerprint = excluded.fingerprint`),
		look: `SELECT fingerprint, owner, until, answer FROM idempotency WHERE key = $1`,
		complete: say(`UPDATE idempotency SET answer = $3, expires = {now} + CAST($4 AS BIGINT)
			WHERE key = $1 AND owner = $2 AND answer IS NULL`),
		release: `DELETE FROM idempotency WHERE key = $1 AND owner = $2 AND answer IS NULL`,
		sweep:   say(`DELETE FROM idempotency WHERE key IN (SELECT key FROM idempotency WHERE expires <= {now} LIMIT 1000)`),
	}}, nil
}

// Migrate creates the table or brings it up to date.
func (s *SQL) Migrate(ctx context.Context) error {
	files, err := fs.Sub(migrations, "migrations")
	if err == nil {
		err = migrate.Migrations{Files: files, Versions: "idempotency_version", Postgres: s.dialect == outbox.Postgres}.Up(ctx, s.db)
	}
	if err != nil {
		return fmt.Errorf("idempotency: migrate: %w", err)
	}
	return nil
}

// Begin implements [Store].
func (s *SQL) Begin(ctx context.Context, c Claim) (*Record, error) {
	if err := s.sweep(ctx); err != nil {
		return nil, err
	}
	for {
		begun, err := s.exec(ctx, s.say.begin, c.Key, c.Fingerprint, c.Owner, c.Lease.Milliseconds(), c.TTL.Milliseconds())
		if begun || err != nil {
			return nil, err
		}
		var r Record
		var answer []byte
		err = s.db.QueryRowContext(ctx, s.say.look, c.Key).Scan(&r.Fingerprint, &r.Owner, &r.Until, &answer)
		if errors.Is(err, sql.ErrNoRows) {
			continue // it was released between the two
		}
		if err == nil && answer != nil {
			err = json.Unmarshal(answer, &r.Answer)
		}
		if err != nil {
			return nil, fmt.Errorf("idempotency: read: %w", err)
		}
		return &r, nil
	}
}

// Complete implements [Store].
func (s *SQL) Complete(ctx context.Context, c Claim, a Answer) error {
	answer, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("idempotency: answer: %w", err)
	}
	return s.end(ctx, s.say.complete, c.Key, c.Owner, string(answer), c.TTL.Milliseconds())
}

// Release implements [Store].
func (s *SQL) Release(ctx context.Context, c Claim) error {
	return s.end(ctx, s.say.release, c.Key, c.Owner)
}

func (s *SQL) end(ctx context.Context, statement string, args ...any) error {
	done, err := s.exec(ctx, statement, args...)
	if err == nil && !done {
		err = ErrLost
	}
	return err
}

// exec reports whether a statement has changed the row.
func (s *SQL) exec(ctx context.Context, statement string, args ...any) (bool, error) {
	result, err := s.db.ExecContext(ctx, statement, args...)
	if err == nil {
		var n int64
		n, err = result.RowsAffected()
		if err == nil {
			return n > 0, nil
		}
	}
	return false, fmt.Errorf("idempotency: write: %w", err)
}

// sweepEvery is how often a process removes what is forgotten.
const sweepEvery = time.Minute

// sweep removes what is forgotten, if it is time.
func (s *SQL) sweep(ctx context.Context) error {
	last, now := s.swept.Load(), time.Now().UnixMilli()
	if now-last < sweepEvery.Milliseconds() || !s.swept.CompareAndSwap(last, now) {
		return nil
	}
	if _, err := s.exec(ctx, s.say.sweep); err != nil {
		return fmt.Errorf("remove what is forgotten: %w", err)
	}
	return nil
}
