package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/farandole/farandole/internal/database"
)

// dropTimeout bounds the removal of a schema.
const dropTimeout = 10 * time.Second

// store is the order service's database. It exists only for one run: a SQLite file in
// a temporary directory, or a schema in a Postgres database.
type store struct {
	*database.Database // the demo's own handle
	target             string
	remove             func() error
}

// newStore makes the database. databaseURL is empty for SQLite.
func newStore(ctx context.Context, databaseURL string) (*store, error) {
	s := &store{}
	var err error
	if databaseURL == "" {
		err = s.makeFile()
	} else {
		err = s.makeSchema(ctx, databaseURL)
	}
	if err != nil {
		return nil, fmt.Errorf("demo: order's database: %w", err)
	}
	if s.Database, err = s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("demo: order's database: %w", err), s.remove())
	}
	return s, nil
}

func (s *store) makeFile() error {
	dir, err := os.MkdirTemp("", "farandole-demo-")
	if err != nil {
		return err
	}
	s.target = filepath.Join(dir, "order.db")
	s.remove = func() error { return os.RemoveAll(dir) }
	return nil
}

// makeSchema creates a schema with a random name. Whoever connects to the target has
// its tables there.
func (s *store) makeSchema(ctx context.Context, databaseURL string) error {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return errDatabaseURL
	}
	schema := "demo_" + strings.ToLower(rand.Text()[:12])
	admin := func(ctx context.Context, statement string) (err error) {
		db, err := database.Open(databaseURL)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		_, err = db.DB.ExecContext(ctx, statement)
		return err
	}
	if err := admin(ctx, "CREATE SCHEMA "+schema); err != nil {
		return err
	}
	query := u.Query()
	query.Set("search_path", schema)
	u.RawQuery = query.Encode()
	s.target = u.String()
	s.remove = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()
		return admin(ctx, "DROP SCHEMA "+schema+" CASCADE")
	}
	return nil
}

// open opens the database for an instance of the service.
func (s *store) open() (*database.Database, error) { return database.Open(s.target) }

// close deletes the database. No service may use it any more.
func (s *store) close() error {
	if err := errors.Join(s.Close(), s.remove()); err != nil {
		return fmt.Errorf("demo: order's database: %w", err)
	}
	return nil
}
