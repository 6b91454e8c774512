package outboxtest

import (
	"database/sql"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/internal/testkit/sqltap"
	"github.com/farandole/farandole/outbox"
)

// RunLedger runs the suite of the SQL ledger as subtests of t, in parallel: the
// conformance suite of package deduptest, and what is special about the
// transactions of handlers.
func RunLedger(t *testing.T, f Factory) {
	t.Helper()
	for name, claims := range map[string]bool{"with claims": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deduptest.Run(t, ledgers(t, f, claims))
		})
	}
	t.Run("model", func(t *testing.T) {
		t.Parallel()
		deduptest.RunModel(t, ledgers(t, f, false), false)
	})
	for name, test := range map[string]func(*ledgerRig){
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
			r := newLedgerRig(t, f)
			r.exec("CREATE TABLE effects (event text PRIMARY KEY)")
			test(r)
		})
	}
}

// ledgers gives tests whose marks do not end the same database.
func ledgers(t *testing.T, f Factory, claims bool) deduptest.Factory {
	t.Helper()
	shared := newLedgerRig(t, f)
	return func(t *testing.T, retention time.Duration) deduptest.Backend {
		t.Helper()
		r := shared.of(t)
		if retention < time.Hour {
			r = newLedgerRig(t, f)
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

// ledgerRig is a test at work on ledgers.
type ledgerRig struct {
	*rig
	first *worker
}

func newLedgerRig(t *testing.T, f Factory) *ledgerRig {
	t.Helper()
	r := &ledgerRig{rig: newRig(t, f, place{})}
	r.first = r.start(outbox.LedgerConfig{})
	return r
}

// of is the rig for another test.
func (r *ledgerRig) of(t *testing.T) *ledgerRig {
	t.Helper()
	another := *r.rig
	another.T = t
	return &ledgerRig{rig: &another, first: r.first}
}

// connections is the size of a worker's pool: some tests have many workers.
const connections = 8

// worker is what one process of a service has: a pool of its own, and a ledger.
type worker struct {
	db     *sql.DB
	ledger *outbox.Ledger
}

func (r *ledgerRig) start(cfg outbox.LedgerConfig) *worker {
	r.Helper()
	db, err := r.Open(r.target)
	r.ok(err)
	return r.on(db, cfg)
}

// tapped is a worker whose statements meet the hook.
func (r *ledgerRig) tapped(hook sqltap.Hook) *worker {
	r.Helper()
	db, err := r.Open(r.target)
	r.ok(err)
	return r.on(sql.OpenDB(sqltap.New(db, "", hook)), outbox.LedgerConfig{})
}

func (r *ledgerRig) on(db *sql.DB, cfg outbox.LedgerConfig) *worker {
	r.Helper()
	r.Cleanup(func() {
		if err := db.Close(); err != nil {
			r.Error(err)
		}
	})
	db.SetMaxOpenConns(connections)
	l, err := outbox.NewLedger(r.outboxOf(db, ""), r.bus, cfg)
	r.ok(err)
	return &worker{db: db, ledger: l}
}

// made counts what is in the outbox for a subject, and dead letters on it.
func (r *ledgerRig) made(subject string) int {
	r.Helper()
	stream, err := r.bus.Stream(r.Context(), r.bus.Names().DLQStream())
	r.ok(err)
	info, err := stream.Info(r.Context(), jetstream.WithSubjectFilter(subject))
	r.ok(err)
	return r.count("outbox WHERE subject = '"+subject+"'") + int(info.State.Subjects[subject]) //nolint:gosec // a count
}

// marks counts those that have not expired.
func (r *ledgerRig) marks() int {
	r.Helper()
	return r.count("inbox WHERE expires_at IS NULL OR expires_at > " + r.past(0))
}
