package outboxtest

import (
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/internal/testkit/sqltap"
	"github.com/farandole/farandole/outbox"
)

func isCommit(statement string) bool { return statement == "COMMIT" }

// answerLost is a step that is stored, which its worker does not know.
func answerLost(r *ledgerRig) {
	p := r.tapped(sqltap.Nth(1, sqltap.Lose, isCommit))
	b := r.handed(p, "1")
	r.handle(b)
	r.is("complete", b.complete(r.Context(), r.out("1")), outbox.ErrDatabase)
	r.tables("stored", 1, 1, 1)
	r.ok(b.complete(r.Context(), r.out("1"))) // recognised
	r.tables("again", 1, 1, 1)
	r.unused(p)
}

// commitLost is one that is not stored: it must not be completed without what
// the handler has changed.
func commitLost(r *ledgerRig) {
	p := r.tapped(sqltap.Nth(1, sqltap.Break, isCommit))
	b := r.handed(p, "1")
	r.handle(b)
	r.is("complete", b.complete(r.Context(), r.out("1")), outbox.ErrDatabase)
	r.is("complete again", b.complete(r.Context(), r.out("1")), outbox.ErrTransaction)
	r.tables("not stored", 0, 0, 0)
	r.handle(b)
	r.ok(b.complete(r.Context(), r.out("1")))
	r.tables("after another run", 1, 1, 1)
	r.unused(p)
}

// knownIDs is a step of which an event is in the outbox already, as from before
// the marks were lost.
func knownIDs(r *ledgerRig) {
	b := r.handed(r.first, "1")
	r.ok(b.complete(r.Context(), r.out("x")))
	b = r.handed(r.first, "2")
	r.handle(b)
	r.ok(b.complete(r.Context(), r.out("x"), r.out("y")))
	r.tables("in the end", 1, 2, 2)
}

func tooLarge(r *ledgerRig) {
	b := r.handed(r.first, "1")
	m := r.out("1")
	m.Data = make([]byte, r.bus.Conn().MaxPayload())
	r.is("complete", b.complete(r.Context(), m), bus.ErrTooLarge)
	r.ok(b.ledger.Release(r.Context(), b.claim, nil, nil))
	r.tables("in the end", 0, 0, 0)
	r.unused(r.first)
}

func missing(r *ledgerRig) {
	r.ok(r.first.ledger.Prepare(r.Context(), time.Hour))
	r.is("prepare for longer than the retention", r.first.ledger.Prepare(r.Context(), 25*time.Hour), dedup.ErrConfig)
	o, err := outbox.New(r.first.db, outbox.Config{Dialect: r.Dialect, Prefix: "other_"})
	r.ok(err)
	l, err := outbox.NewLedger(o, r.bus, outbox.LedgerConfig{})
	r.ok(err)
	r.is("prepare without tables", l.Prepare(r.Context(), time.Hour), outbox.ErrSchema)
	c, err := l.Claim(r.Context(), dedup.Request{Consumer: payment, Key: "k", Lease: time.Minute})
	r.ok(err) // nothing was asked yet
	_, err = outbox.NewLedger(o, r.bus, outbox.LedgerConfig{Retention: time.Millisecond})
	r.is("a retention that is too short", err, dedup.ErrConfig)
	r.is("complete without tables", l.Complete(r.Context(), c, nil), outbox.ErrSchema)
	_, err = l.Claim(r.Context(), dedup.Request{Consumer: payment, Key: "j", Lease: time.Minute, Redelivered: true})
	r.is("claim without tables", err, outbox.ErrSchema)
	r.unused(r.first)
}
