package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestErrors_show_no_password(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, target := range []string{
		"postgres://u:" + secret + "@h:port/db",
		"postgres://u:" + secret + " x@h/db",
		"postgres://u:" + secret + "%zz@h/db",
		"postgres://u:" + secret + "/x@h/db",
		"postgres://u:x/" + secret + "@h/db",
		"postgres://u:" + secret + "@h/db?sslmode=nope",
		"postgres://h/db?password=" + secret + "&connect_timeout=soon",
		"postgres://u:" + secret + "@[::1/db",
		"host=h password=" + secret + " port=x",
		"host=h password='" + secret,
		"password=" + secret + " =",
		secret,
	} {
		_, err := postgres.Open(target)
		if err == nil {
			t.Errorf("%q is a target", target)
			continue
		}
		if !errors.Is(err, outbox.ErrConfig) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", target, err)
		}
	}
	// Nobody listens there: connecting fails, not opening.
	db, err := postgres.Open("postgres://u:" + secret + "@127.0.0.1:1/db")
	must(t, err)
	defer func() { must(t, db.Close()) }()
	if err := db.PingContext(t.Context()); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("error %v", err)
	}
}

func TestOpen_settings(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	for suffix, want := range map[string]string{"": "farandole", "&application_name=shop": "shop"} {
		db, err := postgres.Open(target + suffix)
		must(t, err)
		var name string
		must(t, db.QueryRowContext(t.Context(), "SHOW application_name").Scan(&name))
		if name != want {
			t.Errorf("application_name %q, want %q", name, want)
		}
		must(t, db.Close())
	}
}

func TestOpen_does_not_wait_for_a_server_that_says_nothing(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, silent.Close()) }()
	db, err := postgres.Open("postgres://u@" + silent.Addr().String() + "/db?sslmode=disable&connect_timeout=1")
	must(t, err)
	defer func() { must(t, db.Close()) }()
	ended := make(chan error, 1)
	go func() { ended <- db.PingContext(t.Context()) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("connected")
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits")
	}
}

// made is an outbox in a new database.
func made(t *testing.T, target string) *outbox.Outbox {
	t.Helper()
	db, err := postgres.Open(target)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	o, err := outbox.New(db, outbox.Config{Dialect: outbox.Postgres, Prefix: "shop_", Source: "/shop"})
	must(t, err)
	must(t, o.Migrate(t.Context()))
	return o
}

func seal(t *testing.T, o *outbox.Outbox, id string) event.Event {
	t.Helper()
	e, err := o.Seal(event.Draft{Type: "order.placed.v1", Key: "ord-1", ID: id, Data: []byte("a\x00\xff\\")})
	must(t, err)
	return e
}

func rows(t *testing.T, o *outbox.Outbox) (n int) {
	t.Helper()
	must(t, o.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM shop_outbox").Scan(&n))
	return n
}

func TestTx_adds_in_transactions_of_pgx(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := made(t, target)
	conn, err := pgx.Connect(t.Context(), target)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	_, err = conn.Exec(t.Context(), "CREATE TABLE business (id text)")
	must(t, err)

	for i, end := range []func(pgx.Tx) error{
		func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
		func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
	} {
		tx, err := conn.Begin(t.Context())
		must(t, err)
		_, err = tx.Exec(t.Context(), "INSERT INTO business VALUES ('x')")
		must(t, err)
		must(t, o.Add(t.Context(), postgres.Tx(tx), seal(t, o, "a"), seal(t, o, "b")))
		if err := o.Add(t.Context(), postgres.Tx(tx), seal(t, o, "a")); !errors.Is(err, outbox.ErrDuplicate) {
			t.Errorf("error %v, want ErrDuplicate", err)
		}
		must(t, end(tx))
		var business int
		must(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM business").Scan(&business))
		if business != i || rows(t, o) != 2*i {
			t.Errorf("%d business rows and %d of the outbox, want %d and %d", business, rows(t, o), i, 2*i)
		}
	}
	var data []byte
	must(t, o.DB().QueryRowContext(t.Context(), "SELECT data FROM shop_outbox LIMIT 1").Scan(&data))
	if string(data) != "a\x00\xff\\" {
		t.Errorf("data %q", data)
	}
	// An error of the database is one of the outbox.
	tx, err := conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1/0")
	if err == nil {
		t.Fatal("divided by zero")
	}
	if err := o.Add(t.Context(), postgres.Tx(tx), seal(t, o, "c")); !errors.Is(err, outbox.ErrDatabase) {
		t.Errorf("error %v, want ErrDatabase", err)
	}
	must(t, tx.Rollback(t.Context()))
}
