package postgres_test

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pgtest"
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
	roles, renamed := map[string]string{}, []string{}
	for _, name := range []string{"adder", "relay", "service", "reader"} {
		roles[name] = role(t, owner, name+suffix)
		renamed = append(renamed, "TO "+name, "TO "+roles[name])
	}
	grants = strings.NewReplacer(renamed...).Replace(grants)
	_, err = owner.ExecContext(t.Context(), grants)
	must(t, err)

	as := func(role string) *outbox.Outbox {
		u, err := url.Parse(target)
		must(t, err)
		u.User = url.User(roles[role])
		db, err := postgres.Open(u.String())
		must(t, err)
		t.Cleanup(func() { must(t, db.Close()) })
		o, err := outbox.New(db, cfg)
		must(t, err)
		return o
	}
	adding := as("adder")
	tx, err := adding.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, adding.Add(t.Context(), tx, seal(t, adding, "a"), seal(t, adding, "b")))
	must(t, tx.Commit())
	step := func(o *outbox.Outbox) error {
		m, err := b.Message(seal(t, o, "c"))
		must(t, err)
		l, err := outbox.NewLedger(o, b, outbox.LedgerConfig{})
		must(t, err)
		c, err := l.Claim(t.Context(), dedup.Request{Consumer: "invoices", Key: event.NewEventKey("/shop", "c"), Lease: time.Minute})
		must(t, err)
		return l.Complete(t.Context(), c, []*nats.Msg{m})
	}
	serving, reading, relaying := as("service"), as("reader"), as("relay")
	must(t, step(serving))
	if err := step(adding); err == nil {
		t.Error("who adds may do a consumer's steps")
	}
	for what, statement := range map[string]string{
		"delete":             "DELETE FROM outbox",
		"set times":          "INSERT INTO outbox (message_id, subject, key, due_at) VALUES ('x', 'x', 'x', now() + interval '1 y')",
		"say it is a step's": "INSERT INTO outbox (message_id, subject, key, consumer) VALUES ('x', 'x', 'x', 'order')",
		"choose an id":       "INSERT INTO outbox (id, message_id, subject, key) VALUES (1, 'x', 'x', 'x')",
		"mark":               "UPDATE outbox SET status = 'PUBLISHED'",
		"look":               "SELECT data FROM outbox",
	} {
		for who, o := range map[string]*outbox.Outbox{"adder": adding, "reader": reading} {
			if _, err := o.DB().ExecContext(t.Context(), statement); err == nil && (who != "reader" || what != "look") {
				t.Errorf("%s may %s", who, what)
			}
		}
	}
	if _, err := relaying.DB().ExecContext(t.Context(), "UPDATE outbox SET subject = 'x'"); err == nil {
		t.Error("the relay may change what is published")
	}

	must(t, relaying.Migrate(t.Context()))
	r, err := outbox.NewRelay(relaying, b, outbox.RelayConfig{})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	bustest.Eventually(t, time.Minute, func() bool {
		var n int
		err := owner.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'").Scan(&n)
		return err == nil && n == 3
	})
	stop()
	must(t, <-done)
	_, err = owner.ExecContext(t.Context(), "UPDATE outbox SET status = 'DEAD_LETTER', published_at = NULL")
	must(t, err)
	_, err = reading.Stats(t.Context())
	must(t, err)
	var ids []string
	must(t, reading.Parked().Scan(t.Context(), dlq.Filter{}, false, func(r dlq.Record) error {
		ids = append(ids, r.ID)
		return nil
	}))
	if r, err := relaying.Parked().Replay(t.Context(), dlq.Ref{ID: ids[0]}, dlq.ReplayOptions{}); err != nil || r.Status != dlq.Pending {
		t.Errorf("replay: %+v, %v", r, err)
	}
	for _, id := range ids[1:] {
		if r, err := relaying.Parked().Discard(t.Context(), dlq.Ref{ID: id}, dlq.DiscardOptions{}); err != nil || r.Status != dlq.Discarded {
			t.Errorf("discard: %+v, %v", r, err)
		}
	}
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
