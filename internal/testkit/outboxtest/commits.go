package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/outbox"
)

// lateCommit commits a row after one with a higher id is published. SQLite has
// one transaction that writes at a time, so there it takes rows that somebody
// inserts with ids of their own.
func lateCommit(r *rig) {
	late, early := r.event("late", "late-0"), r.event("early", "early-0")
	r.relay(outbox.RelayConfig{Poll: 50 * time.Millisecond})
	if r.Dialect == outbox.SQLite {
		r.add(early)
		r.eventually(counts{outbox.Published: 1})
		r.exec("UPDATE outbox SET id = 10")
		r.twoPolls()
		tx, err := r.db.BeginTx(r.Context(), nil)
		r.ok(err)
		defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
		r.ok(r.outbox.Add(r.Context(), tx, late))
		r.execIn(tx, "UPDATE outbox SET id = 5 WHERE id > 10") // before a relay claims it
		r.ok(tx.Commit())
	} else {
		tx, err := r.db.BeginTx(r.Context(), nil)
		r.ok(err)
		defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
		r.ok(r.outbox.Add(r.Context(), tx, late))
		r.add(early)
		r.eventually(counts{outbox.Published: 1})
		r.twoPolls()
		r.ok(tx.Commit())
	}
	r.eventually(counts{outbox.Published: 2})
	if all := r.wantOnce(2); len(all) == 2 && all[1].key != "late" {
		r.Errorf("stored are %v", all)
	}
	if got := r.number("SELECT id FROM outbox ORDER BY published_at DESC LIMIT 1"); got != r.number("SELECT min(id) FROM outbox") {
		r.Errorf("row %d was published last, want the lower one", got)
	}
}

// twoPolls waits until the relay has looked for rows twice: whatever it finds by
// polling it would have found.
func (r *rig) twoPolls() {
	for range 2 {
		<-time.After(50 * time.Millisecond)
	}
}

// manyWriters has 20 writers with transactions of 5 rows, one in five of which
// is rolled back.
func manyWriters(r *rig) {
	const writers, transactions, each = 20, 20, 5
	r.relay(outbox.RelayConfig{Batch: 50})
	var mu sync.Mutex
	committed := map[string]bool{}
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for i := range transactions {
				ids := make([]string, each)
				for j := range ids {
					ids[j] = fmt.Sprintf("%d-%d-%d", w, i, j)
				}
				done, err := r.transaction(r.Context(), ids, i%5 == 4)
				if err != nil {
					r.Errorf("writer %d: %v", w, err)
					return
				}
				mu.Lock()
				for _, id := range ids {
					committed[fmt.Sprintf("%q", id)] = done
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	const rows = writers * transactions * each * 4 / 5
	r.eventually(counts{outbox.Published: rows})
	for _, m := range r.wantOnce(rows) {
		if !committed[m.data] {
			r.Errorf("%s is published and was not committed", m.data)
		}
	}
}

// transaction adds an event of each id, with pauses, and commits or rolls back.
func (r *rig) transaction(ctx context.Context, ids []string, back bool) (committed bool, err error) {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	for _, id := range ids {
		if err := r.outbox.Add(ctx, tx, r.event("ord-"+id, id)); err != nil {
			return false, errors.Join(err, tx.Rollback())
		}
		if r.Dialect == outbox.Postgres { // SQLite's writers wait for one another
			<-time.After(rand.N(10 * time.Millisecond)) //nolint:gosec // any will do
		}
	}
	if back {
		return false, tx.Rollback()
	}
	return true, tx.Commit()
}

// idleTransactions holds transactions open elsewhere until the relay has
// published. On SQLite an open transaction that has written keeps everybody
// else from writing: there the relay says so, and resumes when it is over.
func idleTransactions(r *rig) {
	const n = 20
	r.exec("CREATE TABLE business (id INTEGER)")
	elsewhere, err := r.Open(r.Create(r.T))
	r.ok(err)
	defer elsewhere.Close() //nolint:errcheck // the test is over
	_, err = elsewhere.ExecContext(r.Context(), "CREATE TABLE business (id INTEGER)")
	r.ok(err)
	r.add(r.events(1, keys("before-", n)...)...)

	defer r.holdOpen(elsewhere, "INSERT INTO business (id) VALUES (1)")()
	reading := r.holdOpen(r.db, "SELECT count(*) FROM business")
	defer reading()
	writing := r.holdOpen(r.db, "INSERT INTO business (id) VALUES (1)")
	defer writing()
	relay := r.relay(outbox.RelayConfig{})
	if r.Dialect == outbox.SQLite {
		r.unhealthy(relay, outbox.ErrDatabase)
		if s, err := r.outbox.Stats(r.Context()); err != nil || s.Pending != n || s.Oldest == 0 {
			r.Errorf("stats are %+v, %v", s, err)
		}
		writing()
	}
	r.eventually(counts{outbox.Published: n})
	r.add(r.events(1, keys("after-", n)...)...)
	r.eventually(counts{outbox.Published: 2 * n})
	bustest.Eventually(r, soon, relay.Health)
}

// holdOpen leaves a transaction open in which a statement was run, until end.
func (r *rig) holdOpen(db *sql.DB, statement string) (end func()) {
	r.Helper()
	tx, err := db.BeginTx(r.Context(), &sql.TxOptions{ReadOnly: statement[:6] == "SELECT"})
	r.ok(err)
	rows, err := tx.QueryContext(r.Context(), statement)
	r.ok(err)
	r.ok(rows.Close())
	return sync.OnceFunc(func() { r.ok(tx.Rollback()) })
}

// restarts has relays come and go, two at a time, while writers add events.
func restarts(r *rig) {
	const n, writers = 60, 4
	var work sync.WaitGroup
	for w := range writers {
		key := fmt.Sprint("ord-", w)
		work.Go(func() {
			for i := range n {
				if err := add(r.Context(), r.outbox, r.event(key, fmt.Sprintf("%s-%d", key, i))); err != nil {
					r.Errorf("add: %v", err)
					return
				}
			}
		})
	}
	_, second := r.open()
	stop := func() {}
	defer func() { stop() }()
	for i, more := 0, true; more; i++ {
		before := r.count("outbox WHERE status = 'PUBLISHED'")
		o := r.outbox
		if i%2 == 1 {
			o = second
		}
		next := r.relayOn(o, r.bus, outbox.RelayConfig{Batch: 5, Lease: lease})
		stop()
		stop = next.stop
		bustest.Eventually(r, soon, func() bool {
			done := r.count("outbox WHERE status = 'PUBLISHED'")
			more = done < writers*n
			return done >= min(before+writers*n/5, writers*n)
		})
	}
	work.Wait()
	r.eventually(counts{outbox.Published: writers * n})
	r.wantOrder(r.wantOnce(writers * n))
}

// woken polls once an hour, where anything else can tell of rows.
func woken(r *rig) {
	relay := r.relay(outbox.RelayConfig{Poll: time.Hour})
	r.add(r.event("own", "own-0"))
	r.eventually(counts{outbox.Published: 1})
	relay.stop()
	// As from another process: nobody there wakes this relay.
	db, o := r.open()
	cfg := outbox.RelayConfig{}
	if _, ok := db.Driver().(outbox.Watcher); ok {
		cfg.Poll = time.Hour
	}
	r.relayOn(o, r.bus, cfg)
	for i := range 3 {
		r.add(r.event("other", fmt.Sprint("other-", i)))
		r.eventually(counts{outbox.Published: i + 2})
	}
}
