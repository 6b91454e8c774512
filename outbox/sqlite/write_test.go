package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/outboxtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func TestWrite(t *testing.T) { //nolint:paralleltest // the suite is
	outboxtest.RunWrite(t, outboxtest.Factory{
		Dialect: outbox.SQLite,
		Create:  func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "write.db") },
		Open:    sqlite.Open,
	})
}
