package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
)

// The shared server still runs when leaks are looked for.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect connects for as long as the test lasts.
func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := conn.Close(ctx); err != nil {
			tb.Log(err) // its server may have gone
		}
	})
	return conn
}

func exec(tb testing.TB, conn *pgx.Conn, sql string) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestDatabasesAreIsolated(t *testing.T) {
	t.Parallel()
	one, two := connect(t, pgtest.Database(t)), connect(t, pgtest.Database(t))
	exec(t, one, "CREATE TABLE only_here (id int)")
	if query[bool](t, two, "SELECT to_regclass('only_here') IS NOT NULL") {
		t.Error("a table of one database is in another")
	}
}

func TestDatabaseIsDroppedWithWhatUsesIt(t *testing.T) {
	t.Parallel()
	watch := connect(t, pgtest.Database(t))
	var name string
	var left *pgx.Conn
	t.Run("leaves a connection and a slot", func(t *testing.T) {
		url := pgtest.Database(t)
		var err error
		if left, err = pgx.Connect(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		name = query[string](t, left, "SELECT current_database()")
		exec(t, left, "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")

		// A connection that streams from the slot holds it.
		streaming, err := pgconn.Connect(t.Context(), url+"&replication=database")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = streaming.Close(context.Background()) }) //nolint:errcheck // the end is the database's
	})
	if query[int](t, watch, "SELECT count(*) FROM pg_database WHERE datname = $1", name) != 0 {
		t.Error("the database is still there")
	}
	if query[int](t, watch, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'left_behind'") != 0 {
		t.Error("the replication slot is still there")
	}
	if err := left.Ping(t.Context()); err == nil {
		t.Error("its connection still works")
	}
}

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{})
	url := s.Database(t)
	exec(t, connect(t, url), "CREATE TABLE kept AS SELECT 1 AS id")
	for _, end := range []struct {
		how string
		do  func(testing.TB)
	}{{"stop", s.Stop}, {"kill", s.Kill}} {
		end.do(t)
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			t.Errorf("%s: it still takes connections: %v", end.how, conn.Close(t.Context()))
		}
		end.do(t) // twice is fine
		s.Restart(t)
		conn := connect(t, url)
		if n := query[int](t, conn, "SELECT count(*) FROM kept"); n != 1 {
			t.Errorf("%s: %d rows, want 1", end.how, n)
		}
	}
	s.Restart(t) // while it runs, and somebody is connected
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg  pg.Config
		want map[string]string
	}{
		"default": {pg.Config{}, map[string]string{"fsync": "off", "wal_level": "logical", "max_connections": "300"}},
		"durable": {
			pg.Config{Durable: true, Settings: map[string]string{"max_connections": "20", "application_name": "it's"}},
			map[string]string{"fsync": "on", "full_page_writes": "on", "max_connections": "20", "application_name": "it's"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Start(t, test.cfg).Database(t))
			for setting, want := range test.want {
				if got := query[string](t, conn, "SELECT current_setting($1)", setting); got != want {
					t.Errorf("%s is %s, want %s", setting, got, want)
				}
			}
		})
	}
}
