package idempotency_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/idempotency"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/topology"
)

func TestMain(m *testing.M) { bustest.Main(m) }

const patience = 30 * time.Second

// backend opens stores that share what they hold, each as a process of its own.
type backend func() idempotency.Store

// backends are all kinds of store.
var backends = map[string]func(t *testing.T) backend{
	"KV":       kvBackend,
	"SQLite":   func(t *testing.T) backend { t.Helper(); return sqlBackend(t, filepath.Join(t.TempDir(), "a.db")) },
	"Postgres": func(t *testing.T) backend { t.Helper(); return sqlBackend(t, pgtest.Database(t)) },
}

// eachStore runs a test with each kind of store.
func eachStore(t *testing.T, test func(t *testing.T, open backend)) {
	t.Helper()
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

func kvBackend(t *testing.T) backend {
	t.Helper()
	server := bustest.Server(t)
	names := event.Names{Prefix: bustest.Prefix()}
	connect := func() *bus.Bus { return bustest.Connect(t, bus.Config{InProcess: server, Names: names}) }
	bustest.Provision(t, connect(), topology.Config{Buckets: []string{"idempotency"}})
	return func() idempotency.Store {
		store, err := idempotency.OpenKV(t.Context(), connect(), "idempotency")
		must(t, err)
		return store
	}
}

func sqlBackend(t *testing.T, target string) backend {
	t.Helper()
	return func() idempotency.Store {
		_, store := openSQL(t, target)
		return store
	}
}

func openSQL(t *testing.T, target string) (*sql.DB, *idempotency.SQL) {
	t.Helper()
	db, err := database.Open(target)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	store, err := idempotency.NewSQL(db.DB, db.Dialect)
	must(t, err)
	must(t, store.Migrate(context.WithoutCancel(t.Context())))
	return db.DB, store
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
