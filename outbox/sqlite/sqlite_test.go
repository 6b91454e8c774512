package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a file and closes it at the end.
func open(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sqlite.Open(path)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// table opens a new file with a table t(n).
func table(t *testing.T) (*sql.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	db := open(t, path)
	exec(t, db, "CREATE TABLE t (n INTEGER, s TEXT, b BLOB)")
	return db, path
}

// waits fails the test if something has ended instead of waiting for its turn.
func waits(t *testing.T, ended <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func exec(t *testing.T, db execer, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	must(t, err)
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func one[T any](t *testing.T, db querier, query string, args ...any) (v T) {
	t.Helper()
	must(t, db.QueryRowContext(t.Context(), query, args...).Scan(&v))
	return v
}

func TestOpen_settings(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "1", "foreign_keys": "1"} {
		if got := one[string](t, db, "PRAGMA "+pragma); got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
	if version := one[string](t, db, "SELECT sqlite_version()"); version < "3.42" && !strings.HasPrefix(version, "3.1") {
		t.Errorf("version %s", version)
	}
}

// What a service knows of its customers is nobody else's.
func TestOpen_makes_files_for_their_owner_alone(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("file modes are not Windows's way")
	}
	dir := t.TempDir()
	db := open(t, filepath.Join(dir, "orders.db"))
	exec(t, db, "CREATE TABLE t (n)")
	files, err := os.ReadDir(dir)
	must(t, err)
	if len(files) != 4 {
		t.Errorf("%d files, want the database, -wal, -shm and -queue", len(files))
	}
	for _, f := range files {
		info, err := f.Info()
		must(t, err)
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", f.Name(), mode)
		}
	}
}

func TestOpen_takes_any_name(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "with blank.db", "what?mode=memory", "a#b", "100%", "%41", "ü", "file:x", "-", "a&b=c;d", "'\""} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		exec(t, open(t, path), "CREATE TABLE t (n)")
		again := open(t, path)
		if n := one[int](t, again, "SELECT count(*) FROM t"); n != 0 {
			t.Errorf("%s: %d rows", name, n)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		must(t, err)
		for _, f := range files {
			if f != path && f != path+"-wal" && f != path+"-shm" && f != path+"-queue" {
				t.Errorf("%s: made %s", name, f)
			}
		}
	}
}

func TestOpen_keeps_its_file_when_the_directory_changes(t *testing.T) {
	t.Chdir(t.TempDir())
	db := open(t, "relative.db")
	exec(t, db, "CREATE TABLE t (n)")
	t.Chdir(t.TempDir())
	db.SetMaxIdleConns(0) // the next connection is a new one
	if n := one[int](t, db, "SELECT count(*) FROM t"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestOpen_says_what_is_wrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte(strings.Repeat("this is not a database\n", 100)), 0o600))
	for _, tt := range []struct {
		name, path, says string
		is               error
	}{
		{"no name", "", "name of a file", outbox.ErrConfig},
		{"memory", ":memory:", "name of a file", outbox.ErrConfig},
		{"NUL", "a\x00b", "name of a file", outbox.ErrConfig},
		{"no directory", filepath.Join(dir, "missing", "x.db"), "its directory does not exist", outbox.ErrDatabase},
		{"a directory", dir, "is a directory", outbox.ErrDatabase},
		{"not a database", text, "it is not a SQLite database", outbox.ErrDatabase},
	} {
		db, err := sqlite.Open(tt.path)
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) || db != nil {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
}

func TestTransactions_queue_first_come_first_served(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 64
		db, _ := table(t)
		first, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		began := make(chan int, n)
		errs := make(chan error, n)
		for i := range n {
			go func() {
				tx, err := db.BeginTx(t.Context(), nil)
				if err == nil {
					began <- i
					_, err = tx.ExecContext(t.Context(), "INSERT INTO t (n) VALUES ($1)", i)
					err = errors.Join(err, tx.Commit())
				}
				errs <- err
			}()
			synctest.Wait()
		}
		exec(t, first, "INSERT INTO t (n) VALUES (-1)")
		if got := one[int](t, db, "SELECT count(*) FROM t"); got != 0 { // readers do not wait
			t.Errorf("%d rows before the commit", got)
		}
		must(t, first.Commit())
		for i := range n {
			must(t, <-errs)
			if got := <-began; got != i {
				t.Errorf("transaction %d began as number %d", got, i)
			}
		}
		if got := one[int](t, db, "SELECT count(*) FROM t"); got != n+1 {
			t.Errorf("%d rows", got)
		}
	})
}

func TestStatements_that_write_queue_too(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := table(t)
		prepared, err := db.PrepareContext(t.Context(), "UPDATE t SET n = n + 1 RETURNING n")
		must(t, err)
		defer func() { must(t, prepared.Close()) }()
		for name, write := range map[string]func() error{
			"exec":      func() error { _, err := db.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (1)"); return err },
			"returning": func() error { return query(t, db, "-- a\n/* b */ UPDATE t SET n = 2 RETURNING n") },
			"with":      func() error { return query(t, db, "WITH x AS (SELECT 1) DELETE FROM t RETURNING n") },
			"prepared": func() error {
				rows, err := prepared.QueryContext(t.Context())
				if err != nil {
					return err
				}
				return errors.Join(rows.Close(), rows.Err())
			},
			"script": func() error {
				_, err := db.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (3); INSERT INTO t (n) VALUES (4)")
				return err
			},
		} {
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			ended := make(chan error, 1)
			go func() { ended <- write() }()
			waits(t, ended)
			must(t, tx.Rollback())
			if err := <-ended; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for name, text := range map[string]string{
			"select": "SELECT 1", "values": "  VALUES (1)", "pragma": "PRAGMA user_version", "with": "WITH x(n) AS (SELECT 1) SELECT n FROM x",
		} {
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			if err := query(t, db, text); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			must(t, tx.Rollback())
		}
	})
}

func query(t *testing.T, db *sql.DB, text string) error {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), text)
	if err != nil {
		return err
	}
	for rows.Next() {
	}
	return errors.Join(rows.Err(), rows.Close())
}

func TestRows_of_a_statement_that_writes_hold_the_turn_until_they_are_closed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := table(t)
		exec(t, db, "INSERT INTO t (n) VALUES (1), (2)")
		rows, err := db.QueryContext(t.Context(), "UPDATE t SET n = n RETURNING n")
		must(t, err)
		if !rows.Next() {
			t.Fatal("no row")
		}
		ended := make(chan error, 1)
		go func() {
			_, err := db.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (3)")
			ended <- err
		}()
		waits(t, ended)
		must(t, rows.Close())
		must(t, rows.Err())
		must(t, <-ended)
	})
}

func TestWaiting_ends_with_the_context(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, _ := table(t)
		holder, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := db.BeginTx(ctx, nil)
			ended <- err
		}()
		waits(t, ended)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		must(t, holder.Rollback())
		exec(t, db, "INSERT INTO t (n) VALUES (1)") // the queue goes on
	})
}

func TestA_transaction_whose_context_ends_gives_its_turn_back(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := db.BeginTx(ctx, nil)
	must(t, err)
	exec(t, tx, "INSERT INTO t (n) VALUES (1)")
	cancel()
	exec(t, db, "INSERT INTO t (n) VALUES (2)")
	if err := tx.Commit(); err == nil {
		t.Error("committed")
	}
	if got := one[int](t, db, "SELECT sum(n) FROM t"); got != 2 {
		t.Errorf("sum %d", got)
	}
}

func TestReadOnly_transactions_do_not_queue(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	holder, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	exec(t, holder, "INSERT INTO t (n) VALUES (1)")
	reader, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	must(t, err)
	if got := one[int](t, reader, "SELECT count(*) FROM t"); got != 0 {
		t.Errorf("%d rows", got)
	}
	must(t, holder.Commit())
	if got := one[int](t, reader, "SELECT count(*) FROM t"); got != 0 {
		t.Errorf("the snapshot changed: %d rows", got)
	}
	must(t, reader.Rollback())
}

// A transaction that was begun with a statement works as in SQLite everywhere.
func TestTransactions_begun_by_statements(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	conn, err := db.Conn(t.Context())
	must(t, err)
	exec(t, conn, "BEGIN IMMEDIATE")
	ended := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(t.Context(), "INSERT INTO t (n) VALUES (2)")
		ended <- err
	}()
	exec(t, conn, "INSERT INTO t (n) VALUES (1)")
	exec(t, conn, "SAVEPOINT s")
	exec(t, conn, "RELEASE s")
	exec(t, conn, "COMMIT")
	must(t, conn.Close())
	must(t, <-ended)
	if got := one[int](t, db, "SELECT sum(n) FROM t"); got != 3 {
		t.Errorf("sum %d", got)
	}
}

func TestDriver_interfaces_come_through(t *testing.T) {
	t.Parallel()
	db, _ := table(t)
	must(t, db.PingContext(t.Context()))
	exec(t, db, "INSERT INTO t (n, s, b) VALUES (:n, @s, $b)", sql.Named("n", 7), sql.Named("s", "x\x00y"), sql.Named("b", []byte{0, 255}))

	insert, err := db.PrepareContext(t.Context(), "INSERT INTO t (n) VALUES (?)")
	must(t, err)
	defer func() { must(t, insert.Close()) }()
	result, err := insert.ExecContext(t.Context(), 8)
	must(t, err)
	if n, err := result.RowsAffected(); n != 1 || err != nil {
		t.Errorf("%d rows: %v", n, err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	inside := tx.StmtContext(t.Context(), insert)
	_, err = inside.ExecContext(t.Context(), 9)
	must(t, err)
	must(t, tx.Commit())

	rows, err := db.QueryContext(t.Context(), "SELECT n, s, b FROM t WHERE n = :n", sql.Named("n", 7))
	must(t, err)
	types, err := rows.ColumnTypes()
	must(t, err)
	if got := types[2].DatabaseTypeName(); got != "BLOB" {
		t.Errorf("type %s", got)
	}
	var n int
	var s string
	var b []byte
	if !rows.Next() {
		t.Fatal("no row")
	}
	must(t, rows.Scan(&n, &s, &b))
	must(t, errors.Join(rows.Close(), rows.Err()))
	if n != 7 || s != "x\x00y" || string(b) != "\x00\xff" {
		t.Errorf("%d %q %q", n, s, b)
	}
	if got := one[int](t, db, "SELECT count(*) FROM t"); got != 3 {
		t.Errorf("%d rows", got)
	}

	// A statement ends with its context, which a driver without the interfaces
	// for contexts would not notice.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	var forever int
	err = db.QueryRowContext(ctx, "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x").Scan(&forever)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
