package postgres_test

import (
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/outboxtest"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func TestWrite(t *testing.T) { //nolint:paralleltest // the suite is
	outboxtest.RunWrite(t, outboxtest.Factory{
		Dialect: outbox.Postgres,
		Create:  func(t *testing.T) string { t.Helper(); return pgtest.Database(t) },
		Open:    postgres.Open,
	})
}
