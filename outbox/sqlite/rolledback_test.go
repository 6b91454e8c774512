package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"
)

// endless is a statement that only an interruption ends.
const endless = "INSERT INTO t (n) WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT i FROM c WHERE i < 0"

func TestTransaction_that_SQLite_has_rolled_back(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"for an interruption": endless,
		"for a conflict":      "INSERT OR ROLLBACK INTO u VALUES (1)",
		"for a trigger":       "DELETE FROM u",
		"as it was told":      "ROLLBACK",
		"in a script":         "INSERT INTO t (n) VALUES (3); ROLLBACK",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := table(t)
			exec(t, db, "CREATE TABLE u (n PRIMARY KEY)")
			exec(t, db, "INSERT INTO u VALUES (1)")
			exec(t, db, "CREATE TRIGGER kept BEFORE DELETE ON u BEGIN SELECT raise(ROLLBACK, 'kept'); END")
			for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
				tx, err := db.BeginTx(t.Context(), nil)
				must(t, err)
				exec(t, tx, "INSERT INTO t (n) VALUES (1)")
				short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				tx.ExecContext(short, query) //nolint:errcheck // whoever asks for it does not look
				cancel()
				for range 2 {
					if _, err = tx.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (2)"); !errors.Is(err, sql.ErrTxDone) {
						t.Errorf("the next statement: got %v, want ErrTxDone", err)
					}
				}
				var n int
				if err = tx.QueryRowContext(t.Context(), "INSERT INTO t (n) VALUES (2) RETURNING n").Scan(&n); !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("the next query: got %v, want ErrTxDone", err)
				}
				end(tx) //nolint:errcheck // the next test is of the answer
			}
			if n := one[int](t, db, "SELECT count(*) FROM t"); n != 0 {
				t.Errorf("%d rows of a transaction that was rolled back", n)
			}
			exec(t, db, "INSERT INTO t (n) VALUES (4)") // nobody has the turn
		})
	}
}

func TestCommit_of_what_SQLite_has_rolled_back(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	exec(t, tx, "INSERT INTO t (n) VALUES (1)")
	exec(t, tx, "ROLLBACK")
	if err = tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("commit: got %v, want ErrTxDone", err)
	}
}

func TestTransaction_that_reads_and_was_committed_by_a_statement(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	must(t, err)
	exec(t, tx, "COMMIT")
	if _, err = tx.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (1)"); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("the next statement: got %v, want ErrTxDone", err)
	}
	must(t, tx.Rollback())
}

func TestTransaction_goes_on_after_a_statement_that_failed_alone(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	exec(t, db, "CREATE TABLE u (n PRIMARY KEY)")
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	exec(t, tx, "INSERT INTO u VALUES (1)")
	for range 2 {
		if _, err = tx.ExecContext(t.Context(), "INSERT INTO u VALUES (1)"); err == nil {
			t.Fatal("a key is there twice")
		}
	}
	exec(t, tx, "INSERT INTO u VALUES (2)")
	must(t, tx.Commit())
	if n := one[int](t, db, "SELECT count(*) FROM u"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
