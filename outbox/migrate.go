package outbox

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/farandole/farandole/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrate creates the tables or brings them up to date; several processes may
// do so at once. What it has done stands in the table <prefix>outbox_version.
// Errors match [ErrSchema].
func (o *Outbox) Migrate(ctx context.Context) error {
	dir := "migrations/sqlite"
	if o.cfg.Dialect == Postgres {
		dir = "migrations/postgres"
	}
	files, err := fs.Sub(migrations, dir)
	if err == nil {
		err = migrate.Migrations{
			Files: files, Prefix: o.cfg.Prefix, Versions: "outbox_version", Postgres: o.cfg.Dialect == Postgres,
		}.Up(ctx, o.db)
	}
	if err != nil {
		return fmt.Errorf("%w: migrate: %w", ErrSchema, err)
	}
	return nil
}
