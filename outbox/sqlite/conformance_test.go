package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/farandole/farandole/internal/testkit/outboxtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

// factory makes databases.
func factory() outboxtest.Factory {
	return outboxtest.Factory{
		Dialect: outbox.SQLite,
		Create:  func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "test.db") },
		Open:    sqlite.Open,
	}
}

func TestConformance(t *testing.T) { //nolint:paralleltest // the suite is
	outboxtest.Run(t, factory())
}

func BenchmarkDrain(b *testing.B) {
	f := factory()
	f.Open = sqlite.Open
	outboxtest.Bench(b, f, filepath.Join(b.TempDir(), "test.db"))
}
