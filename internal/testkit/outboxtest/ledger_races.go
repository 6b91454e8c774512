package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// waiting has all connections taken, or, on SQLite, the one writer.
func waiting(r *ledgerRig) {
	p := r.start(outbox.LedgerConfig{})
	p.db.SetMaxOpenConns(1)
	first, second := r.handed(p, "1"), r.handed(p, "2")
	r.handle(first)
	ctx, cancel := context.WithCancelCause(r.Context())
	why := errors.New("shutting down")
	ended := make(chan error, 1)
	go func() {
		_, err := outbox.Tx(second.handler(ctx))
		ended <- err
	}()
	bustest.Eventually(r, soon, func() bool { return p.db.Stats().WaitCount > 0 })
	cancel(why)
	if err := <-ended; !errors.Is(err, why) || !errors.Is(err, outbox.ErrDatabase) {
		r.Errorf("begin: got %v, want the cancellation's cause and ErrDatabase", err)
	}
	r.ok(first.complete(r.Context()))
	r.handle(second)
	r.ok(second.complete(r.Context()))
	r.tables("in the end", 2, 0, 2)
	r.unused(p)
}

// renewals come from the heartbeat while the handler is at work.
func renewals(r *ledgerRig) {
	for _, claims := range []bool{true, false} {
		p := r.start(outbox.LedgerConfig{Claims: claims})
		b := r.handed(p, map[bool]string{true: "claimed", false: "not claimed"}[claims])
		r.ok(p.ledger.Extend(r.Context(), b.claim))
		r.handle(b)
		for range 3 {
			r.ok(p.ledger.Extend(r.Context(), b.claim))
		}
		r.ok(b.complete(r.Context(), r.out(b.event.ID())))
		r.ok(p.ledger.Extend(r.Context(), b.claim))
		r.unused(p)
	}
	r.tables("in the end", 2, 2, 2)
}

// twoWorkers run one event at the same time. On SQLite the second waits for
// the first before it begins; on Postgres both work, and one completes first.
func twoWorkers(r *ledgerRig) {
	one, two := r.start(outbox.LedgerConfig{}), r.start(outbox.LedgerConfig{})
	first, second := r.handed(one, "1"), r.handed(two, "1")
	r.handle(first)
	working, completed, settled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		tx, err := outbox.Tx(second.handler(r.Context()))
		if err == nil {
			_, err = tx.ExecContext(r.Context(), "INSERT INTO effects (event) VALUES ('second')")
		}
		close(working)
		if err == nil {
			<-completed
			err = second.complete(r.Context(), r.out("second"))
		}
		settled <- err
	}()
	if r.Dialect == outbox.Postgres {
		<-working
	} else {
		bustest.Eventually(r, soon, func() bool { return two.db.Stats().InUse > 0 })
	}
	r.ok(first.complete(r.Context(), r.out("first")))
	close(completed)
	if err := <-settled; !errors.Is(err, dedup.ErrSettled) {
		r.Errorf("the second worker: got %v, want ErrSettled", err)
	}
	r.tables("in the end", 1, 1, 1)
	r.unused(one)
	r.unused(two)
}

// overtaken is a worker whose lease has ended while its handler was at work.
// On SQLite its transaction holds all others off, so that it is never too late.
func overtaken(r *ledgerRig) {
	stalled, taker := r.start(outbox.LedgerConfig{Claims: true}), r.start(outbox.LedgerConfig{Claims: true})
	e, err := r.outbox.Seal(event.Draft{Type: "order.placed.v1", Key: "k", ID: "1", ContentType: event.ContentTypeJSON, Data: []byte("{}")})
	r.ok(err)
	request := dedup.Request{Consumer: payment, Key: event.EventKeyOf(e), Lease: time.Second, Redelivered: true}
	c, err := stalled.ledger.Claim(r.Context(), request)
	r.ok(err)
	stale := begun{stalled, e, c}
	if r.Dialect == outbox.Postgres {
		r.handle(stale)
	}
	fresh := begun{worker: taker, event: e}
	bustest.Eventually(r, soon, func() bool {
		fresh.claim, err = taker.ledger.Claim(r.Context(), request)
		r.ok(err)
		return fresh.claim.Status == dedup.Claimed
	})
	if r.Dialect == outbox.SQLite {
		r.handle(stale)
	}
	r.is("complete", stale.complete(r.Context(), r.out("stale")), dedup.ErrLeaseLost)
	r.unused(stalled)
	r.tables("after the stale one", 0, 0, 1)
	r.handle(fresh)
	r.ok(fresh.complete(r.Context(), r.out("fresh")))
	r.tables("in the end", 1, 1, 1)
	r.unused(taker)
}

// serialization has another transaction in the way of a step's: the handler is
// to run again, which costs no attempt, and then all is well.
func serialization(r *ledgerRig) {
	p := r.start(outbox.LedgerConfig{})
	if r.Dialect == outbox.Postgres {
		r.exec("INSERT INTO effects (event) VALUES ('1')")
		r.repeatable(p)
		return
	}
	r.locked(p)
}

// repeatable has a transaction that reads what another one changes meanwhile,
// at an isolation level at which that is an error of the commit.
func (r *ledgerRig) repeatable(p *worker) {
	r.Helper()
	p.db.SetMaxOpenConns(1) // so that the setting holds
	r.execIn(p.db, "SET default_transaction_isolation = 'serializable'")
	p.db.SetMaxOpenConns(connections)
	b := r.handed(p, "1")
	for _, again := range []bool{false, true} {
		tx, err := outbox.Tx(b.handler(r.Context()))
		r.ok(err)
		var n int
		r.ok(tx.QueryRowContext(r.Context(), "SELECT count(*) FROM effects").Scan(&n))
		r.execIn(tx, "INSERT INTO effects (event) VALUES ('mine')")
		if !again {
			r.skew(n)
			r.is("complete", b.complete(r.Context(), r.out("1")), dedup.ErrStale)
			r.unused(p)
			continue
		}
		r.ok(b.complete(r.Context(), r.out("1")))
	}
	r.tables("in the end", 3, 1, 1)
}

// skew commits a transaction that cannot be serialized with one that has read
// n effects and added one.
func (r *ledgerRig) skew(n int) {
	r.Helper()
	tx, err := r.db.BeginTx(r.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	r.ok(err)
	var seen int
	r.ok(tx.QueryRowContext(r.Context(), "SELECT count(*) FROM effects").Scan(&seen))
	if seen != n {
		r.Fatalf("%d effects, want %d", seen, n)
	}
	r.execIn(tx, "INSERT INTO effects (event) VALUES ('theirs')")
	r.ok(tx.Commit())
}

// locked has another process that writes for longer than this one is ready to wait.
func (r *ledgerRig) locked(p *worker) {
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
	r.tables("in the end", 1, 1, 1)
	r.unused(p)
}
