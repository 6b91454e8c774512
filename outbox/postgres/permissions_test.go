package postgres_test

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/pg/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
)

// TestPermissions_documented has roles with what docs/outbox.md grants them, and
// nothing else, add events and publish them.
func TestPermissions_documented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/outbox.md")
	must(t, err)
	_, text, found := strings.Cut(string(doc), "<!-- grants -->\n```sql\n")
	grants, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatal("docs/outbox.md shows no grants")
	}
	target := pgtest.Database(t)
	owner, err := postgres.Open(target)
	must(t, err)
	t.Cleanup(func() { must(t, owner.Close()) })
	b := bustest.NewBus(t)
	cfg := outbox.Config{Dialect: outbox.Postgres, Names: b.Names(), Source: "/shop"}
	o, err := outbox.New(owner, cfg)
	must(t, err)
	must(t, o.Migrate(t.Context()))
	// Roles belong to the server, which tests share.
	suffix := strings.ToLower(b.Names().Prefix)
	adder, relay := role(t, owner, "adder"+suffix), role(t, owner, "relay"+suffix)
	grants = strings.NewReplacer("TO adder", "TO "+adder, "TO relay", "TO "+relay).Replace(grants)
	_, err = owner.ExecContext(t.Context(), grants)
	must(t, err)

	as := func(role string) *outbox.Outbox {
		u, err := url.Parse(target)
		must(t, err)
		u.User = url.User(role)
		db, err := postgres.Open(u.String())
		must(t, err)
		t.Cleanup(func() { must(t, db.Close()) })
		o, err := outbox.New(db, cfg)
		must(t, err)
		return o
	}
	adding := as(adder)
	tx, err := adding.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, adding.Add(t.Context(), tx, seal(t, adding, "a"), seal(t, adding, "b")))
	must(t, tx.Commit())
	if _, err := adding.DB().ExecContext(t.Context(), "DELETE FROM outbox"); err == nil {
		t.Error("who adds may delete")
	}

	relaying := as(relay)
	must(t, relaying.Migrate(t.Context()))
	r, err := outbox.NewRelay(relaying, b, outbox.RelayConfig{})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	bustest.Eventually(t, time.Minute, func() bool {
		var n int
		err := owner.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'").Scan(&n)
		return err == nil && n == 2
	})
	stop()
	must(t, <-done)
	_, err = relaying.Stats(t.Context())
	must(t, err)
}

// role makes a role that may log in and has no rights of its own.
func role(t *testing.T, owner *sql.DB, name string) string {
	t.Helper()
	_, err := owner.ExecContext(t.Context(), "CREATE ROLE "+name+" LOGIN")
	must(t, err)
	t.Cleanup(func() {
		_, err := owner.ExecContext(context.WithoutCancel(t.Context()), "DROP OWNED BY "+name+"; DROP ROLE "+name)
		must(t, err)
	})
	return name
}
