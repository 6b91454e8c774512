package migrate_test

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/migrate"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// databases give a test an empty database of each kind.
var databases = map[string]func(tb testing.TB) (target string){
	"SQLite":   func(tb testing.TB) string { tb.Helper(); return filepath.Join(tb.TempDir(), "x.db") },
	"Postgres": pgtest.Database,
}

func open(t *testing.T, target string) *database.Database {
	t.Helper()
	db, err := database.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// migrations are scripts with the versions 1, 2, ...
func migrations(db *database.Database, scripts ...string) migrate.Migrations {
	m := migrate.Migrations{Prefix: "shop_", Versions: "toy_version", Postgres: db.Dialect == outbox.Postgres}
	files := fstest.MapFS{"README.txt": &fstest.MapFile{Data: []byte("no migration")}}
	for i, s := range scripts {
		files["0000"+string(rune('1'+i))+"_step.sql"] = &fstest.MapFile{Data: []byte(s)}
	}
	m.Files = files
	return m
}

const (
	one = `CREATE TABLE {prefix}toy (id integer PRIMARY KEY); INSERT INTO {prefix}toy VALUES (1)`
	two = `INSERT INTO {prefix}toy VALUES (2)`
)

func count(t *testing.T, db *database.Database) (n int) {
	t.Helper()
	if err := db.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM shop_toy`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEachMigrationRunsOnce(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := database(t)
			db := open(t, target)
			for i, m := range []migrate.Migrations{migrations(db, one), migrations(db, one), migrations(db, one, two), migrations(db, one, two)} {
				if err := m.Up(t.Context(), db.DB); err != nil {
					t.Fatal(i, err)
				}
				if n, want := count(t, db), 1+i/2; n != want {
					t.Errorf("%d rows after %d migrations, want %d", n, i, want)
				}
			}
		})
	}
}

// Processes that start together do not get into each other's way.
func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := database(t)
			var work sync.WaitGroup
			for range 8 {
				db := open(t, target)
				work.Go(func() {
					if err := migrations(db, one, two).Up(t.Context(), db.DB); err != nil {
						t.Error(err)
					}
				})
			}
			work.Wait()
			if n := count(t, open(t, target)); n != 2 {
				t.Errorf("%d rows, want 2", n)
			}
		})
	}
}

func TestNewerTablesAreRefused(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := database(t)
			db := open(t, target)
			if err := migrations(db, one, two).Up(t.Context(), db.DB); err != nil {
				t.Fatal(err)
			}
			err := migrations(db, one).Up(t.Context(), db.DB)
			if !errors.Is(err, migrate.ErrNewer) || !strings.Contains(err.Error(), "shop_toy_version says 2, it knows 1") {
				t.Errorf("%v, want ErrNewer", err)
			}
		})
	}
}

// A migration that fails half-way has done nothing, and can be tried again.
func TestFailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := database(t)
			db := open(t, target)
			if err := migrations(db, one+`; nonsense`).Up(t.Context(), db.DB); err == nil || !strings.Contains(err.Error(), "nonsense") {
				t.Fatalf("%v, want a syntax error", err)
			}
			if err := migrations(db, one).Up(t.Context(), db.DB); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestMisnamedFiles(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "x.db"))
	for _, files := range []fstest.MapFS{{}, {"first.sql": &fstest.MapFile{}}} {
		if err := (migrate.Migrations{Files: files, Versions: "v"}).Up(t.Context(), db.DB); err == nil {
			t.Errorf("%v: no error", files)
		}
	}
}
