package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/farandole/farandole/internal/testkit/outboxtest/ledgertest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, ledgertest.Factory{
		Dialect: outbox.SQLite,
		Create:  func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "ledger.db") },
		Open:    sqlite.Open,
	})
}
