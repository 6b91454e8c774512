package ledgertest

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/internal/sqltap"
	"github.com/farandole/farandole/outbox"
)

const (
	consumer = bus.Consumer("payment")
	// soon is a generous bound for what must happen.
	soon = 60 * time.Second
)

// begun is an event that is being handled.
type begun struct {
	*process
	event bus.Event
	claim *dedup.Claim
}

// handed is a first delivery of an event.
func (r *rig) handed(p *process, id string) begun {
	r.Helper()
	e, err := r.outbox.Seal(bus.Draft{Type: "order.placed.v1", Key: "k", ID: id, ContentType: bus.ContentTypeJSON, Data: []byte("{}")})
	r.ok(err)
	c, err := p.ledger.Claim(r.Context(), dedup.Request{Consumer: consumer, Key: bus.EventKeyOf(e), Lease: time.Minute})
	r.ok(err)
	if c.Status != dedup.Claimed {
		r.Fatalf("claim of %s is %v", id, c.Status)
	}
	return begun{p, e, c}
}

// handle is what a handler does: it begins its transaction and changes something.
func (r *rig) handle(b begun) *sql.Tx {
	r.Helper()
	tx, err := b.inbox.Begin(r.Context(), consumer, b.event)
	r.ok(err)
	r.exec(tx, "INSERT INTO effects (event) VALUES ($1)", b.event.ID())
	return tx
}

func (b begun) complete(ctx context.Context, out ...*nats.Msg) error {
	return b.ledger.Complete(ctx, b.claim, out)
}

func (r *rig) exec(tx outbox.Tx, query string, args ...any) {
	r.Helper()
	_, err := tx.ExecContext(r.Context(), query, args...)
	r.ok(err)
}

// out is an event that follows from another.
func (r *rig) out(id string) *nats.Msg {
	return &nats.Msg{
		Subject: r.bus.Names().EventSubject("payment.captured.v1", "k"),
		Header:  nats.Header{nats.MsgIdHdr: {id}}, Data: []byte(id),
	}
}

// want checks how often the handlers' changes, the rows of the outbox and the
// marks are there, and that nobody holds a connection.
func (r *rig) want(what string, effects, rows, marks int) {
	r.Helper()
	for table, want := range map[string]int{"effects": effects, "outbox": rows, "inbox": marks} {
		var got int
		r.ok(r.db.QueryRowContext(r.Context(), "SELECT count(*) FROM "+table).Scan(&got))
		if got != want {
			r.Errorf("%s: %d rows in %s, want %d", what, got, table, want)
		}
	}
}

// idle waits until the process holds no connection.
func (r *rig) idle(p *process) {
	r.Helper()
	bustest.Eventually(r, soon, func() bool { return p.db.Stats().InUse == 0 })
}

func (r *rig) is(what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func oneTransaction(r *rig) {
	b := r.handed(r.process, "1")
	tx := r.handle(b)
	again, err := b.inbox.Begin(r.Context(), consumer, b.event)
	r.ok(err)
	if again != tx {
		r.Error("a second Begin of one run has another transaction")
	}
	r.exec(tx, "INSERT INTO effects (event) VALUES ('another')")
	if n := r.db.Stats().InUse; n != 1 {
		r.Errorf("%d connections in use by one handler", n)
	}
	r.want("before", 0, 0, 0)
	r.ok(b.complete(r.Context(), r.out("a"), r.out("b")))
	r.want("after", 2, 2, 1)
	r.ok(b.complete(r.Context(), r.out("a"), r.out("b")))
	r.want("again", 2, 2, 1)

	b = r.handed(r.process, "2") // asks for nothing
	r.ok(b.complete(r.Context(), r.out("c")))
	r.want("without a transaction", 2, 3, 2)
	r.idle(r.process)
}

// rolledBack ends claims in every other way than by Complete.
func rolledBack(r *rig) {
	end := map[string]func(begun) error{
		"release":        func(b begun) error { return b.ledger.Release(r.Context(), b.claim, &bus.Attempt{Error: "x"}, nil) },
		"unspent":        func(b begun) error { return b.ledger.Release(r.Context(), b.claim, nil, nil) },
		"release, later": func(b begun) error { return b.ledger.Release(r.Context(), b.claim, nil, r.out("later")) },
		"park": func(b begun) error {
			return b.ledger.Park(r.Context(), b.claim, nil, r.letter(b))
		},
		"too large": func(b begun) error {
			m := r.out("large")
			m.Data = make([]byte, 2<<20)
			err := b.complete(r.Context(), m)
			r.is("complete", err, bus.ErrTooLarge)
			return b.ledger.Park(r.Context(), b.claim, nil, r.letter(b))
		},
		"letter refused": func(b begun) error {
			err := b.ledger.Park(r.Context(), b.claim, nil, &nats.Msg{Subject: "nobody-stores-this"})
			r.is("park", err, bus.ErrNoStream)
			return nil
		},
	}
	for name, end := range end {
		for _, claims := range []bool{false, true} {
			p := r.start(dedup.SQLConfig{Claims: claims})
			b := r.handed(p, name+map[bool]string{true: ", claimed"}[claims])
			r.handle(b)
			r.ok(end(b))
			r.idle(p)
			_, err := b.inbox.Begin(r.Context(), consumer, b.event)
			r.is("begin after "+name, err, outbox.ErrNoClaim)
		}
	}
	var effects int
	r.ok(r.db.QueryRowContext(r.Context(), "SELECT count(*) FROM effects").Scan(&effects))
	if effects != 0 {
		r.Errorf("%d changes of handlers that failed", effects)
	}
}

func (r *rig) letter(b begun) *nats.Msg {
	k := bus.EventKeyOf(b.event)
	return &nats.Msg{Subject: r.bus.Names().DeadLetterSubject(consumer, bus.ReasonPermanent, k), Header: nats.Header{nats.MsgIdHdr: {string(k)}}}
}

// endedByHandler shows what happens if a handler does what it must not.
func endedByHandler(r *rig) {
	for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		b := r.handed(r.process, name)
		r.ok(end(r.handle(b)))
		for range 2 {
			r.is("complete after "+name, b.complete(r.Context(), r.out(name)), outbox.ErrTransaction)
		}
		r.idle(r.process)
		// The ledger may let the handler run again at once.
		tx, err := b.inbox.Begin(r.Context(), consumer, b.event)
		r.ok(err)
		r.exec(tx, "INSERT INTO effects (event) VALUES ($1)", name+" again")
		r.ok(b.complete(r.Context(), r.out(name)))
	}
	r.want("after", 3, 2, 2) // what was committed by hand was
	r.idle(r.process)
}

// endedByContext has handlers that do not return when they should.
func endedByContext(r *rig) {
	timeout := errors.New("handler timeout")
	for name, end := range map[string]func(context.Context) (context.Context, func()){
		"cause": func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(timeout) }
		},
		"deadline": func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			r.Cleanup(cancel)
			return ctx, func() { <-ctx.Done() }
		},
	} {
		ctx, end := end(r.Context())
		b := r.handed(r.process, name)
		tx, err := b.inbox.Begin(ctx, consumer, b.event)
		r.ok(err)
		r.exec(tx, "INSERT INTO effects (event) VALUES ('x')")
		end()
		r.idle(r.process) // though the handler has not returned
		if err := b.complete(r.Context(), r.out("x")); !errors.Is(err, outbox.ErrTransaction) {
			r.Errorf("%s: complete: got %v, want ErrTransaction", name, err)
		}
		r.ok(b.ledger.Release(r.Context(), b.claim, nil, nil))
	}
	r.want("rolled back", 0, 0, 0)

	ctx, cancel := context.WithCancel(r.Context())
	b := r.handed(r.process, "returned")
	tx, err := b.inbox.Begin(ctx, consumer, b.event)
	r.ok(err)
	r.exec(tx, "INSERT INTO effects (event) VALUES ('y')")
	cancel() // what every handler's context meets when it has returned
	r.ok(b.complete(r.Context(), r.out("y")))
	r.want("committed", 1, 1, 1)
	r.idle(r.process)
}

// waiting has all connections taken, or, on SQLite, the one writer.
func waiting(r *rig) {
	p := r.start(dedup.SQLConfig{})
	p.db.SetMaxOpenConns(1)
	first, second := r.handed(p, "1"), r.handed(p, "2")
	r.handle(first)
	ctx, cancel := context.WithCancelCause(r.Context())
	why := errors.New("shutting down")
	ended := make(chan error, 1)
	go func() {
		_, err := p.inbox.Begin(ctx, consumer, second.event)
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
	r.want("in the end", 2, 0, 2)
	r.idle(p)
}

func unclaimed(r *rig) {
	b := r.handed(r.process, "1")
	other := r.outbox.Inbox()
	_, err := other.Begin(r.Context(), consumer, b.event)
	r.is("another inbox", err, outbox.ErrNoClaim)
	_, err = r.inbox.Begin(r.Context(), "audit", b.event)
	r.is("another consumer", err, outbox.ErrNoClaim)
	r.ok(b.complete(r.Context()))
	_, err = r.inbox.Begin(r.Context(), consumer, b.event)
	r.is("after the event", err, outbox.ErrNoClaim)
	r.idle(r.process)
}

// renewals come from the heartbeat while the handler is at work.
func renewals(r *rig) {
	for _, claims := range []bool{true, false} {
		p := r.start(dedup.SQLConfig{Claims: claims})
		b := r.handed(p, map[bool]string{true: "claimed", false: "not claimed"}[claims])
		r.ok(p.ledger.Extend(r.Context(), b.claim))
		r.handle(b)
		for range 3 {
			r.ok(p.ledger.Extend(r.Context(), b.claim))
		}
		r.ok(b.complete(r.Context(), r.out(b.event.ID())))
		r.ok(p.ledger.Extend(r.Context(), b.claim))
		r.idle(p)
	}
	r.want("in the end", 2, 2, 2)
}

// twoWorkers run one event at the same time. On SQLite the second waits for
// the first before it begins, on Postgres before it writes its mark.
func twoWorkers(r *rig) {
	one, two := r.start(dedup.SQLConfig{}), r.start(dedup.SQLConfig{})
	first, second := r.handed(one, "1"), r.handed(two, "1")
	r.handle(first)
	settled := make(chan error, 1)
	go func() {
		tx, err := two.inbox.Begin(r.Context(), consumer, second.event)
		if err == nil {
			_, err = tx.ExecContext(r.Context(), "INSERT INTO effects (event) VALUES ('second')")
		}
		if err == nil {
			err = second.complete(r.Context(), r.out("second"))
		}
		settled <- err
	}()
	bustest.Eventually(r, soon, func() bool { return two.db.Stats().InUse > 0 })
	r.ok(first.complete(r.Context(), r.out("first")))
	if err := <-settled; !errors.Is(err, dedup.ErrSettled) {
		r.Errorf("the second worker: got %v, want ErrSettled", err)
	}
	r.want("in the end", 1, 1, 1)
	r.idle(one)
	r.idle(two)
}

// overtaken is a worker whose lease has ended while its handler was at work.
// On SQLite its transaction holds all others off, so that it is never too late.
func overtaken(r *rig) {
	stalled, taker := r.start(dedup.SQLConfig{Claims: true}), r.start(dedup.SQLConfig{Claims: true})
	e, err := r.outbox.Seal(bus.Draft{Type: "order.placed.v1", Key: "k", ID: "1", ContentType: bus.ContentTypeJSON, Data: []byte("{}")})
	r.ok(err)
	request := dedup.Request{Consumer: consumer, Key: bus.EventKeyOf(e), Lease: time.Second, Redelivered: true}
	c, err := stalled.ledger.Claim(r.Context(), request)
	r.ok(err)
	stale := begun{stalled, e, c}
	if r.Dialect == outbox.Postgres {
		r.handle(stale)
	}
	fresh := begun{process: taker, event: e}
	bustest.Eventually(r, soon, func() bool {
		fresh.claim, err = taker.ledger.Claim(r.Context(), request)
		r.ok(err)
		return fresh.claim.Status == dedup.Claimed
	})
	if r.Dialect == outbox.SQLite {
		r.handle(stale)
	}
	r.is("complete", stale.complete(r.Context(), r.out("stale")), dedup.ErrLeaseLost)
	r.idle(stalled)
	r.want("after the stale one", 0, 0, 1)
	r.handle(fresh)
	r.ok(fresh.complete(r.Context(), r.out("fresh")))
	r.want("in the end", 1, 1, 1)
	r.idle(taker)
}

func isCommit(statement string) bool { return statement == "COMMIT" }

// answerLost is a step that is stored, which its worker does not know.
func answerLost(r *rig) {
	p := r.tapped(sqltap.Nth(1, sqltap.Lose, isCommit))
	b := r.handed(p, "1")
	r.handle(b)
	r.is("complete", b.complete(r.Context(), r.out("1")), outbox.ErrDatabase)
	r.want("stored", 1, 1, 1)
	r.ok(b.complete(r.Context(), r.out("1"))) // recognised
	r.want("again", 1, 1, 1)
	r.idle(p)
}

// commitLost is one that is not stored: it must not be completed without what
// the handler has changed.
func commitLost(r *rig) {
	p := r.tapped(sqltap.Nth(1, sqltap.Break, isCommit))
	b := r.handed(p, "1")
	r.handle(b)
	r.is("complete", b.complete(r.Context(), r.out("1")), outbox.ErrDatabase)
	r.is("complete again", b.complete(r.Context(), r.out("1")), outbox.ErrTransaction)
	r.want("not stored", 0, 0, 0)
	r.handle(b)
	r.ok(b.complete(r.Context(), r.out("1")))
	r.want("after another run", 1, 1, 1)
	r.idle(p)
}

// knownIDs is a step of which an event is in the outbox already, as from before
// the marks were lost.
func knownIDs(r *rig) {
	b := r.handed(r.process, "1")
	r.ok(b.complete(r.Context(), r.out("x")))
	b = r.handed(r.process, "2")
	r.handle(b)
	r.ok(b.complete(r.Context(), r.out("x"), r.out("y")))
	r.want("in the end", 1, 2, 2)
}

func tooLarge(r *rig) {
	b := r.handed(r.process, "1")
	m := r.out("1")
	m.Data = make([]byte, r.bus.Conn().MaxPayload())
	r.is("complete", b.complete(r.Context(), m), bus.ErrTooLarge)
	r.ok(b.ledger.Release(r.Context(), b.claim, nil, nil))
	r.want("in the end", 0, 0, 0)
	r.idle(r.process)
}

func missing(r *rig) {
	r.ok(r.ledger.Prepare(r.Context(), time.Hour))
	r.is("prepare for longer than the retention", r.ledger.Prepare(r.Context(), 25*time.Hour), dedup.ErrConfig)
	o, err := outbox.New(r.db, outbox.Config{Dialect: r.Dialect, Prefix: "other_"})
	r.ok(err)
	l, err := dedup.NewSQL(r.bus, o.Inbox(), dedup.SQLConfig{})
	r.ok(err)
	r.is("prepare without tables", l.Prepare(r.Context(), time.Hour), outbox.ErrSchema)
	c, err := l.Claim(r.Context(), dedup.Request{Consumer: consumer, Key: "k", Lease: time.Minute})
	r.ok(err) // nothing was asked yet
	r.is("complete without tables", l.Complete(r.Context(), c, nil), outbox.ErrSchema)
	_, err = l.Claim(r.Context(), dedup.Request{Consumer: consumer, Key: "j", Lease: time.Minute, Redelivered: true})
	r.is("claim without tables", err, outbox.ErrSchema)
	r.idle(r.process)
}
