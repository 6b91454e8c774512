// Package migrate brings the tables of a database up to date with the
// migrations that a program carries, by goose.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/farandole/farandole/internal/backoff"
)

// ErrNewer is returned when the tables are those of a newer program.
var ErrNewer = errors.New("the tables are newer than this program")

// Migrations are those of one set of tables.
type Migrations struct {
	// Files are NNNNN_name.sql, each a script for the database at hand, in
	// which {prefix} stands for Prefix.
	Files fs.FS
	// Prefix of the tables' names.
	Prefix string
	// Versions is the table that says what was done, without the prefix.
	Versions string
	// Postgres: the database is Postgres, else SQLite.
	Postgres bool
}

const (
	// sqliteTries is how often Up begins anew when another process migrates
	// the same SQLite file at the same time; Postgres has a lock for that.
	sqliteTries = 20
	// lockTries, a second apart, are how long Up waits for that lock.
	lockTries = 300
)

// Up runs the migrations that have not been run, each in a transaction.
// Several processes may do so at once. The error matches [ErrNewer], or is
// the driver's.
func (m Migrations) Up(ctx context.Context, db *sql.DB) error {
	steps, err := m.steps()
	if err != nil {
		return err
	}
	for try := range sqliteTries {
		if err = m.up(ctx, db, steps); err == nil || m.Postgres || errors.Is(err, ErrNewer) || ctx.Err() != nil {
			break
		}
		backoff.Wait(ctx, backoff.FullJitter(20*time.Millisecond, 400*time.Millisecond, try, rand.Float64())) //nolint:gosec // jitter
	}
	return err
}

func (m Migrations) up(ctx context.Context, db *sql.DB, steps []*goose.Migration) error {
	options := []goose.ProviderOption{
		goose.WithGoMigrations(steps...), goose.WithDisableGlobalRegistry(true), goose.WithTableName(m.Prefix + m.Versions),
	}
	dialect := goose.DialectSQLite3
	if m.Postgres {
		dialect = goose.DialectPostgres
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, lockTries))
		if err != nil {
			return err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	provider, err := goose.NewProvider(dialect, db, nil, options...)
	if err != nil {
		return err
	}
	if _, err = provider.Up(ctx); err != nil {
		return err
	}
	there, err := provider.GetDBVersion(ctx)
	if known := steps[len(steps)-1].Version; err == nil && there > known {
		err = fmt.Errorf("%w: %s%s says %d, it knows %d", ErrNewer, m.Prefix, m.Versions, there, known)
	}
	return err
}

// steps are the files, in their order.
func (m Migrations) steps() ([]*goose.Migration, error) {
	files, err := fs.Glob(m.Files, "*.sql")
	if err != nil {
		return nil, err
	}
	var steps []*goose.Migration
	for _, name := range files {
		digits, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		text, err := fs.ReadFile(m.Files, name)
		if err != nil {
			return nil, err
		}
		script := strings.ReplaceAll(string(text), "{prefix}", m.Prefix)
		steps = append(steps, goose.NewGoMigration(version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, script)
			return err
		}}, nil))
	}
	if len(steps) == 0 {
		return nil, errors.New("no migrations")
	}
	return steps, nil
}
