package outboxtest

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// RunWrite runs the suite of what writes rows and what looks after them, as
// subtests of t, in parallel. It starts its test again in processes of their
// own: t's name must be that of a function, and the test must do nothing else.
func RunWrite(t *testing.T, f Factory) {
	t.Helper()
	if work, ok := assigned(t); ok {
		work.do(t, f)
		return
	}
	t.Parallel()
	for name, test := range map[string]func(*writer){
		"commits and rolls back with the business row":             committed,
		"an id is added once":                                      duplicate,
		"content ids":                                              contentIDs,
		"a refused event leaves nothing":                           refused,
		"several outboxes in a database":                           prefixes,
		"data is published to the bit":                             exactData,
		"a row inserted by hand is the same event":                 byHand,
		"goroutines and processes migrate at once, and again":      migratedAtOnce,
		"tables newer than the program":                            newerTables,
		"writers in 8 processes, one of which holds the lock":      manyProcesses,
		"a watch tells of commits in other processes":              watched,
		"parked rows are listed, redriven and discarded":           parked,
		"parked rows that nobody can read are listed all the same": unreadable,
		"statistics": statistics,
		"reads go on, and writers of one process queue, while one holds": queued,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWriter(t, f))
		})
	}
}

// writer is a test at work on a database with an outbox and a business table.
type writer struct {
	*testing.T
	Factory
	target string
	names  event.Names
	db     *sql.DB
	outbox *outbox.Outbox
}

func newWriter(t *testing.T, f Factory) *writer {
	t.Helper()
	w := &writer{T: t, Factory: f, target: f.Create(t), names: event.Names{Prefix: bustest.Prefix()}}
	w.db = w.open()
	w.outbox = w.outboxOf(w.db, "")
	w.ok(w.outbox.Migrate(t.Context()))
	w.exec(w.db, "CREATE TABLE business (id TEXT PRIMARY KEY)")
	return w
}

// open opens the database once more.
func (w *writer) open() *sql.DB {
	w.Helper()
	db, err := w.Open(w.target)
	w.ok(err)
	w.Cleanup(func() { w.ok(db.Close()) })
	return db
}

func (w *writer) outboxOf(db *sql.DB, prefix string) *outbox.Outbox {
	w.Helper()
	o, err := outbox.New(db, outbox.Config{Dialect: w.Dialect, Prefix: prefix, Names: w.names, Source: "/outboxtest"})
	w.ok(err)
	return o
}

func (w *writer) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// seal makes an event of a key; an empty id is a random one.
func (w *writer) seal(key, id string, data []byte) event.Event {
	w.Helper()
	e, err := w.outbox.Seal(event.Draft{Type: "order.placed.v1", Key: event.Key(key), ID: id, ContentType: "application/octet-stream", Data: data})
	w.ok(err)
	return e
}

// commit commits what do does.
func (w *writer) commit(do func(tx *sql.Tx)) {
	w.Helper()
	tx, err := w.db.BeginTx(w.Context(), nil)
	w.ok(err)
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	do(tx)
	w.ok(tx.Commit())
}

// add commits events in one transaction.
func (w *writer) add(events ...event.Event) {
	w.Helper()
	w.commit(func(tx *sql.Tx) { w.ok(w.outbox.Add(w.Context(), tx, events...)) })
}

func (w *writer) exec(db outbox.Execer, query string, args ...any) {
	w.Helper()
	if _, err := db.ExecContext(w.Context(), query, args...); err != nil {
		w.Fatalf("%s: %v", query, err)
	}
}

// count counts what follows FROM.
func (w *writer) count(from string) (n int) {
	w.Helper()
	w.ok(w.db.QueryRowContext(w.Context(), "SELECT count(*) FROM "+from).Scan(&n))
	return n
}

// want compares counts of tables.
func (w *writer) want(counts map[string]int) {
	w.Helper()
	for from, want := range counts {
		if got := w.count(from); got != want {
			w.Errorf("%d rows in %s, want %d", got, from, want)
		}
	}
}

// stream makes the writer's streams.
func (w *writer) stream() *bus.Bus {
	w.Helper()
	b := bustest.Connect(w, bus.Config{InProcess: bustest.Server(w), Names: w.names})
	return bustest.Provision(w, b, topology.Config{})
}

// relay runs a relay of an outbox to the end of the test.
func (w *writer) relay(o *outbox.Outbox, b *bus.Bus) {
	w.Helper()
	r, err := outbox.NewRelay(o, b, outbox.RelayConfig{})
	w.ok(err)
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("relay: %v", err)
		}
	})
}

// await waits until so many rows are in what follows FROM.
func (w *writer) await(from string, n int) {
	w.Helper()
	bustest.Eventually(w, soon, func() error {
		if got := w.count(from); got != n {
			return fmt.Errorf("%d rows in %s, want %d", got, from, n)
		}
		return nil
	})
}

// published waits until all rows of the outbox are, and so many.
func (w *writer) published(n int) {
	w.Helper()
	bustest.Eventually(w, soon, func() error {
		all, done := w.count("outbox"), w.count("outbox WHERE status = 'PUBLISHED'")
		if all != n || done != n {
			return fmt.Errorf("%d of %d rows are published, want %d", done, all, n)
		}
		return nil
	})
}
