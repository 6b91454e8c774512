package order

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/farandole/farandole/internal/migrate"
	"github.com/farandole/farandole/outbox"
)

//go:embed migrations
var migrations embed.FS

// migrate creates the tables, the outbox's among them, or brings them up to date.
func (s *Service) migrate(ctx context.Context) error {
	if err := errors.Join(s.outbox.Migrate(ctx), s.answers.Migrate(ctx)); err != nil {
		return err
	}
	dir := "migrations/sqlite"
	if s.db.Dialect == outbox.Postgres {
		dir = "migrations/postgres"
	}
	files, err := fs.Sub(migrations, dir)
	if err == nil {
		err = migrate.Migrations{Files: files, Versions: "order_version", Postgres: s.db.Dialect == outbox.Postgres}.Up(ctx, s.db.DB)
	}
	if err != nil {
		return fmt.Errorf("%w: migrate: %w", ErrTables, err)
	}
	return nil
}
