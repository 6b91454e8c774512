package ledgertest

import (
	"database/sql"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/outbox"
)

// serialization has another transaction in the way of a step's: the handler is
// to run again, which costs no attempt, and then all is well.
func serialization(r *rig) {
	p := r.start(dedup.SQLConfig{})
	if r.Dialect == outbox.Postgres {
		r.exec(r.db, "INSERT INTO effects (event) VALUES ('1')")
		r.repeatable(p)
		return
	}
	r.locked(p)
}

// repeatable has a transaction that reads what another one changes meanwhile,
// at an isolation level at which that is an error of the commit.
func (r *rig) repeatable(p *process) {
	r.Helper()
	p.db.SetMaxOpenConns(1) // so that the setting holds
	r.exec(p.db, "SET default_transaction_isolation = 'serializable'")
	p.db.SetMaxOpenConns(connections)
	b := r.handed(p, "1")
	for _, again := range []bool{false, true} {
		tx, err := b.inbox.Begin(r.Context(), consumer, b.event)
		r.ok(err)
		var n int
		r.ok(tx.QueryRowContext(r.Context(), "SELECT count(*) FROM effects").Scan(&n))
		r.exec(tx, "INSERT INTO effects (event) VALUES ('mine')")
		if !again {
			r.skew(n)
			r.is("complete", b.complete(r.Context(), r.out("1")), dedup.ErrStale)
			r.idle(p)
			continue
		}
		r.ok(b.complete(r.Context(), r.out("1")))
	}
	r.want("in the end", 3, 1, 1)
}

// skew commits a transaction that cannot be serialized with one that has read
// n effects and added one.
func (r *rig) skew(n int) {
	r.Helper()
	tx, err := r.db.BeginTx(r.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	r.ok(err)
	var seen int
	r.ok(tx.QueryRowContext(r.Context(), "SELECT count(*) FROM effects").Scan(&seen))
	if seen != n {
		r.Fatalf("%d effects, want %d", seen, n)
	}
	r.exec(tx, "INSERT INTO effects (event) VALUES ('theirs')")
	r.ok(tx.Commit())
}

// locked has another process that writes for longer than this one is ready to wait.
func (r *rig) locked(p *process) {
	r.Helper()
	b := r.handed(p, "1")
	tx, err := r.db.BeginTx(r.Context(), nil) // another pool: another process
	r.ok(err)
	start := time.Now()
	r.is("complete", b.complete(r.Context(), r.out("1")), dedup.ErrStale)
	r.Logf("gave up after %v", time.Since(start))
	r.ok(tx.Rollback())
	r.handle(b)
	r.ok(b.complete(r.Context(), r.out("1")))
	r.want("in the end", 1, 1, 1)
	r.idle(p)
}
