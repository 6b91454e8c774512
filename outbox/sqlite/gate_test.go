package sqlite_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/outbox/sqlite"
)

// hold takes the gate; false if it is not free.
func hold(t *testing.T, path string) (leave func() error, ok bool) {
	t.Helper()
	leave, ok, err := sqlite.HoldGate(path)
	must(t, err)
	return leave, ok
}

func TestGate_is_held_until_the_database_is_locked(t *testing.T) {
	t.Parallel()
	db, path := table(t)
	other := open(t, path) // as another process
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	leave, ok := hold(t, path)
	if !ok {
		t.Fatal("a transaction that has begun holds the gate")
	}
	must(t, leave())
	ended := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (1)")
		ended <- err
	}()
	bustest.Eventually(t, time.Minute, func() bool { // who waits for the database does
		leave, ok := hold(t, path)
		if ok {
			must(t, leave())
		}
		return !ok
	})
	must(t, tx.Commit())
	must(t, <-ended)
	if leave, ok = hold(t, path); !ok {
		t.Fatal("nobody writes, and the gate is held")
	}
	must(t, leave())
}

// Whoever has the gate may be stopped: that holds nobody up for long, or often.
func TestGate_that_is_stuck_is_passed(t *testing.T) {
	t.Parallel()
	db, path := table(t)
	leave, ok := hold(t, path)
	if !ok {
		t.Fatal("the gate is held")
	}
	for range 20 { // of which the first waits
		exec(t, db, "INSERT INTO t (n) VALUES (1)")
	}
	must(t, leave())
	if n := one[int](t, db, "SELECT count(*) FROM t"); n != 20 {
		t.Errorf("%d rows", n)
	}
}

func TestGate_is_left_with_the_context(t *testing.T) {
	t.Parallel()
	db, path := table(t)
	leave, ok := hold(t, path)
	if !ok {
		t.Fatal("the gate is held")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := db.BeginTx(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	must(t, leave())
	exec(t, db, "INSERT INTO t (n) VALUES (1)") // the turn was given back
}
