package e2e_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/services/audit"
)

// auditOK waits until the system behind nats is at rest, and audits it: every
// order ended, money and stock right, nothing lost, nothing applied twice.
// orders names the order service's database.
func auditOK(t testing.TB, nats, orders, gateway string, ids []string) {
	t.Helper()
	db := openDatabase(t, orders)
	b, err := bus.Connect(t.Context(), bus.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	var violations []audit.Violation
	// The last event's followers may still be under way: what is wrong for
	// good stays wrong.
	bustest.Eventually(t, patience, func() error {
		report, err := audit.Run(t.Context(), b, db, gateway, ids...)
		if err != nil {
			return err
		}
		violations = report.Violations
		if !report.OK {
			return errors.New(violations[0].String())
		}
		if report.DeadLetters > 0 {
			t.Fatalf("%d dead letters, want none", report.DeadLetters)
		}
		return nil
	})
}

// openDatabase opens the order service's database, beside the service.
func openDatabase(t testing.TB, target string) *sql.DB {
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
	return db.DB
}
