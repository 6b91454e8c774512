package e2e_test

import (
	"errors"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/services/audit"
)

// auditOK waits until the system behind nats is at rest, and audits it: every
// order ended, money and stock right, nothing lost, nothing applied twice.
func auditOK(t testing.TB, nats, gateway string, ids []string) {
	t.Helper()
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
		report, err := audit.Run(t.Context(), b, gateway, ids...)
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
