package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/farandole/farandole/internal/sqltap"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/outboxtest/ledgertest"
	"github.com/farandole/farandole/outbox/sqlite"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, ledgertest.Factory{
		Dialect: outbox.SQLite,
		Create:  func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "ledger.db") },
		Open:    openUnsynced,
	})
}

// openUnsynced opens a file whose commits do not wait for the disk: what the
// suite proves does not depend on that, but its leases and retentions are short.
func openUnsynced(path string) (*sql.DB, error) {
	pool, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(sqltap.New(pool, "PRAGMA synchronous = OFF", nil)), nil
}
