package database_test

import (
	"errors"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpen_either_database(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		target func(t *testing.T) string
		want   outbox.Dialect
	}{
		"SQLite":   {func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "postgres:x.db") }, outbox.SQLite},
		"Postgres": {func(t *testing.T) string { t.Helper(); return pgtest.Database(t) }, outbox.Postgres},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := database.Open(tt.target(t))
			must(t, err)
			defer func() { must(t, d.Close()) }()
			if d.Dialect != tt.want {
				t.Errorf("dialect %v", d.Dialect)
			}
			o, err := d.Outbox(outbox.Config{Prefix: "x_", Source: "/x"})
			must(t, err)
			must(t, o.Migrate(t.Context()))
		})
	}
}

func TestOpen_says_what_is_wrong(t *testing.T) {
	t.Parallel()
	for target, is := range map[string]error{
		"":                                    outbox.ErrConfig,
		"postgres://u@h:port/db":              outbox.ErrConfig,
		"postgresql://u@h/db?sslmode=maybe":   outbox.ErrConfig,
		filepath.Join(t.TempDir(), "a", "db"): outbox.ErrDatabase,
	} {
		if _, err := database.Open(target); !errors.Is(err, is) {
			t.Errorf("%q: %v, want %v", target, err, is)
		}
	}
}
