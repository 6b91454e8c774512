package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/internal/testkit/sqltap"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
	"github.com/farandole/farandole/outbox/sqlite"
)

// engines are the databases that the SQL ledger is tested on.
var engines = map[string]engine{
	"SQLite": {
		dialect: outbox.SQLite,
		create:  func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "test.db") },
		open:    sqlite.Open,
		// What is proved does not depend on the disk, but leases are short.
		greeting: "PRAGMA synchronous = OFF",
	},
	"Postgres": {
		dialect: outbox.Postgres,
		create:  func(t *testing.T) string { t.Helper(); return pgtest.Database(t) },
		open:    postgres.Open,
	},
}

type engine struct {
	dialect  outbox.Dialect
	create   func(t *testing.T) (target string)
	open     func(target string) (*sql.DB, error)
	greeting string
}

// sqlKind opens ledgers in databases: one for each system that asks, with a
// relay that outlives the system's processes.
func sqlKind(t *testing.T, e engine, claims bool) kind {
	t.Helper()
	return (&databases{t: t, engine: e, claims: claims, known: map[string]*database{}}).ledger
}

type databases struct {
	t *testing.T
	engine
	claims bool

	mu    sync.Mutex
	known map[string]*database // by the system's prefix
}

// database is one system's.
type database struct {
	target string
	opened map[*bus.Bus]*sqlLedger // each connection is a process
}

// sqlLedger is what one process has of the database.
type sqlLedger struct {
	*outbox.Ledger
	db    *sql.DB
	tap   *sqltap.Tap
	judge *judge
}

// judge lets a test choose the tap's hook after the ledger was opened.
type judge struct {
	mu   sync.Mutex
	hook sqltap.Hook
}

func (j *judge) set(hook sqltap.Hook) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.hook = hook
}

func (j *judge) verdict(query string) sqltap.Verdict {
	j.mu.Lock()
	hook := j.hook
	j.mu.Unlock()
	if hook == nil {
		return sqltap.Pass
	}
	return hook(query)
}

// crash cuts the process off from its database.
func (l *sqlLedger) crash() { l.tap.Cut() }

// drained says whether the relay has nothing to do.
func (l *sqlLedger) drained(ctx context.Context) error {
	var open int
	err := l.db.QueryRowContext(ctx, "SELECT count(*) FROM outbox WHERE status <> 'PUBLISHED'").Scan(&open)
	if err == nil && open > 0 {
		err = fmt.Errorf("%d rows are not published", open)
	}
	return err
}

func (d *databases) ledger(b *bus.Bus) (ledger, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known, ok := d.known[b.Names().Prefix]
	if !ok {
		known = &database{target: d.create(d.t), opened: map[*bus.Bus]*sqlLedger{}}
		d.known[b.Names().Prefix] = known
		if err := d.begin(known, b.Names()); err != nil {
			return nil, err
		}
	}
	if l, ok := known.opened[b]; ok {
		return l, nil
	}
	l := &sqlLedger{judge: &judge{}}
	o, err := d.connect(known, b.Names(), l)
	if err != nil {
		return nil, err
	}
	if l.Ledger, err = outbox.NewLedger(o, b, outbox.LedgerConfig{Claims: d.claims, NoRelay: true}); err != nil {
		return nil, err
	}
	known.opened[b] = l
	return l, nil
}

// connect opens the database behind a tap of its own.
func (d *databases) connect(known *database, n event.Names, l *sqlLedger) (*outbox.Outbox, error) {
	pool, err := d.open(known.target)
	if err != nil {
		return nil, err
	}
	l.tap = sqltap.New(pool, d.greeting, l.judge.verdict)
	l.db = sql.OpenDB(l.tap)
	d.t.Cleanup(func() {
		if err := l.db.Close(); err != nil {
			d.t.Error(err)
		}
	})
	return outbox.New(l.db, outbox.Config{Dialect: d.dialect, Names: n, Source: "/test"})
}

// begin makes the tables and runs the system's relay until the end of the test.
func (d *databases) begin(known *database, n event.Names) error {
	l := &sqlLedger{judge: &judge{}}
	o, err := d.connect(known, n, l)
	if err != nil {
		return err
	}
	if err := o.Migrate(d.t.Context()); err != nil {
		return err
	}
	for _, table := range []string{"CREATE TABLE effects (event text PRIMARY KEY, runs bigint NOT NULL)"} {
		if _, err := l.db.ExecContext(d.t.Context(), table); err != nil {
			return err
		}
	}
	b := bustest.Connect(d.t, bus.Config{InProcess: bustest.Server(d.t), Names: n})
	relay, err := outbox.NewRelay(o, b, outbox.RelayConfig{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	d.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
	})
	return nil
}
