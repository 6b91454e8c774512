package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/farandole/farandole/bustest"
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

func TestMain(m *testing.M) { bustest.Main(m) }

func TestConformance(t *testing.T) { outboxtest.Run(t, factory()) } //nolint:paralleltest // the suite is

func TestWrite(t *testing.T) { outboxtest.RunWrite(t, factory()) } //nolint:paralleltest // the suite is

func TestLedger(t *testing.T) {
	t.Parallel()
	outboxtest.RunLedger(t, factory())
}

func BenchmarkDrain(b *testing.B) {
	f := factory()
	f.Open = sqlite.Open
	outboxtest.Bench(b, f, filepath.Join(b.TempDir(), "test.db"))
}
