package postgres_test

import (
	"testing"

	"github.com/farandole/farandole/internal/testkit/outboxtest/ledgertest"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, ledgertest.Factory{
		Dialect: outbox.Postgres,
		Create:  func(t *testing.T) string { t.Helper(); return pgtest.Database(t) },
		Open:    postgres.Open,
	})
}
