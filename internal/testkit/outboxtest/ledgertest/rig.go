package ledgertest

import (
	"database/sql"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/outboxtest"
	"github.com/farandole/farandole/internal/testkit/sqltap"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// Run runs all tests on the databases that f makes, as subtests of t, in parallel.
func Run(t *testing.T, f outboxtest.Factory) {
	t.Helper()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	for name, claims := range map[string]bool{"with claims": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deduptest.Run(t, ledgers(t, f, server, claims))
		})
	}
	t.Run("model", func(t *testing.T) {
		t.Parallel()
		deduptest.RunModel(t, ledgers(t, f, server, false), false)
	})
	for name, test := range map[string]func(r *rig){
		"a step is one transaction":                       oneTransaction,
		"what fails is rolled back":                       rolledBack,
		"a handler that ends its transaction":             endedByHandler,
		"a transaction ends with its statement":           interrupted,
		"a transaction ends with the handler's context":   endedByContext,
		"waiting for a transaction ends with the context": waiting,
		"no transaction without a claim":                  unclaimed,
		"renewals beside an open transaction":             renewals,
		"two workers of one event":                        twoWorkers,
		"a worker that was overtaken":                     overtaken,
		"a commit whose answer is lost":                   answerLost,
		"a commit that is lost":                           commitLost,
		"ids that are in the outbox already":              knownIDs,
		"messages that no relay could publish":            tooLarge,
		"others in the way":                               serialization,
		"tables that are missing":                         missing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, f, server)
			r.exec(r.db, "CREATE TABLE effects (event text PRIMARY KEY)")
			test(r)
		})
	}
}

// ledgers gives tests whose marks do not end the same database.
func ledgers(t *testing.T, f outboxtest.Factory, server *bustest.TestServer, claims bool) deduptest.Factory {
	t.Helper()
	shared := newRig(t, f, server)
	return func(t *testing.T, retention time.Duration) deduptest.Backend {
		t.Helper()
		r := shared.of(t)
		if retention < time.Hour {
			r = newRig(t, f, server)
		}
		return deduptest.Backend{
			Open: func() deduptest.Ledger {
				return r.start(outbox.LedgerConfig{Retention: retention, Claims: claims}).ledger
			},
			Names:  r.bus.Names(),
			Stored: r.made,
			Marks:  r.marks,
			Pass:   func(d time.Duration) { <-time.After(d) },
		}
	}
}

// connections is the size of a worker's pool: some tests have many workers.
const connections = 8

// rig is a database with a bus, for a test of ledgers.
type rig struct {
	*testing.T
	outboxtest.Factory
	target string
	bus    *bus.Bus
	*process
}

// newRig has empty tables, and a bus on the server.
func newRig(t *testing.T, f outboxtest.Factory, server *bustest.TestServer) *rig {
	t.Helper()
	b := bustest.Connect(t, bus.Config{InProcess: server, Names: event.Names{Prefix: bustest.Prefix()}})
	r := &rig{T: t, Factory: f, target: f.Create(t), bus: bustest.Provision(t, b, topology.Config{})}
	r.process = r.start(outbox.LedgerConfig{})
	r.ok(r.outbox.Migrate(t.Context()))
	return r
}

// of is the rig for another test.
func (r *rig) of(t *testing.T) *rig {
	t.Helper()
	another := *r
	another.T = t
	return &another
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// process is what one process of a service has: a pool of its own, and a ledger.
type process struct {
	db     *sql.DB
	outbox *outbox.Outbox
	ledger *outbox.Ledger
}

func (r *rig) start(cfg outbox.LedgerConfig) *process {
	r.Helper()
	db, err := r.Open(r.target)
	r.ok(err)
	return r.on(db, cfg)
}

// tapped is a process whose statements meet the hook.
func (r *rig) tapped(hook sqltap.Hook) *process {
	r.Helper()
	db, err := r.Open(r.target)
	r.ok(err)
	return r.on(sql.OpenDB(sqltap.New(db, "", hook)), outbox.LedgerConfig{})
}

func (r *rig) on(db *sql.DB, cfg outbox.LedgerConfig) *process {
	r.Helper()
	p := &process{db: db}
	r.Cleanup(func() {
		if err := p.db.Close(); err != nil {
			r.Error(err)
		}
	})
	p.db.SetMaxOpenConns(connections)
	var err error
	p.outbox, err = outbox.New(p.db, outbox.Config{Dialect: r.Dialect, Names: r.bus.Names(), Source: "/ledgertest"})
	r.ok(err)
	p.ledger, err = outbox.NewLedger(p.outbox, r.bus, cfg)
	r.ok(err)
	return p
}

// made counts what is in the outbox for a subject, and dead letters on it.
func (r *rig) made(subject string) (n int) {
	r.Helper()
	r.ok(r.db.QueryRowContext(r.Context(), "SELECT count(*) FROM outbox WHERE subject = $1", subject).Scan(&n))
	stream, err := r.bus.JetStream().Stream(r.Context(), r.bus.Names().DLQStream())
	r.ok(err)
	info, err := stream.Info(r.Context(), jetstream.WithSubjectFilter(subject))
	r.ok(err)
	return n + int(info.State.Subjects[subject]) //nolint:gosec // a count
}

// marks counts those that have not expired.
func (r *rig) marks() (n int) {
	r.Helper()
	now := "clock_timestamp()"
	if r.Dialect == outbox.SQLite {
		now = "unixepoch('subsec') * 1000"
	}
	r.ok(r.db.QueryRowContext(r.Context(), "SELECT count(*) FROM inbox WHERE expires_at IS NULL OR expires_at > "+now).Scan(&n))
	return n
}
