package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

func oneTransaction(r *ledgerRig) {
	b := r.handed(r.first, "1")
	tx := r.handle(b)
	again, err := outbox.Tx(b.handler(r.Context()))
	r.ok(err)
	if again != tx {
		r.Error("a second Tx of one run is another transaction")
	}
	r.execIn(tx, "INSERT INTO effects (event) VALUES ('another')")
	if n := r.first.db.Stats().InUse; n != 1 {
		r.Errorf("%d connections in use by one handler", n)
	}
	r.tables("before", 0, 0, 0)
	r.ok(b.complete(r.Context(), r.out("a"), r.out("b")))
	r.tables("after", 2, 2, 1)
	r.ok(b.complete(r.Context(), r.out("a"), r.out("b")))
	r.tables("again", 2, 2, 1)

	b = r.handed(r.first, "2") // asks for nothing
	r.ok(b.complete(r.Context(), r.out("c")))
	r.tables("without a transaction", 2, 3, 2)
	r.unused(r.first)
}

// rolledBack ends claims in every other way than by Complete.
func rolledBack(r *ledgerRig) {
	end := map[string]func(begun) error{
		"release":        func(b begun) error { return b.ledger.Release(r.Context(), b.claim, &event.Attempt{Error: "x"}, nil) },
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
			p := r.start(outbox.LedgerConfig{Claims: claims})
			b := r.handed(p, name+map[bool]string{true: ", claimed"}[claims])
			r.handle(b)
			r.ok(end(b))
			r.unused(p)
			_, err := outbox.Tx(b.handler(r.Context()))
			r.is("begin after "+name, err, outbox.ErrNoHandler)
		}
	}
	if n := r.count("effects"); n != 0 {
		r.Errorf("%d changes of handlers that failed", n)
	}
}

// endedByHandler shows what happens if a handler does what it must not.
func endedByHandler(r *ledgerRig) {
	for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		b := r.handed(r.first, name)
		r.ok(end(r.handle(b)))
		for range 2 {
			r.is("complete after "+name, b.complete(r.Context(), r.out(name)), outbox.ErrTransaction)
		}
		r.unused(r.first)
		// The ledger may let the handler run again at once.
		tx, err := outbox.Tx(b.handler(r.Context()))
		r.ok(err)
		r.execIn(tx, "INSERT INTO effects (event) VALUES ($1)", name+" again")
		r.ok(b.complete(r.Context(), r.out(name)))
	}
	r.tables("after", 3, 2, 2) // what was committed by hand was
	r.unused(r.first)
}

// interrupted has a handler go on after a statement that takes the transaction along.
func interrupted(r *ledgerRig) {
	b := r.handed(r.first, "1")
	tx := r.handle(b)
	short, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := tx.ExecContext(short, `INSERT INTO effects (event) WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c)
		SELECT CAST(i AS text) FROM c WHERE i < 0`); err == nil {
		r.Fatal("the statement has an end")
	}
	if err := b.complete(r.Context(), r.out("a")); err == nil {
		r.Error("it is completed without what was before")
	}
	r.tables("after", 0, 0, 0)
	r.unused(r.first)
}

// endedByContext has handlers that do not return when they should.
func endedByContext(r *ledgerRig) {
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
		b := r.handed(r.first, name)
		tx, err := outbox.Tx(b.handler(ctx))
		r.ok(err)
		r.execIn(tx, "INSERT INTO effects (event) VALUES ('x')")
		end()
		r.unused(r.first) // though the handler has not returned
		if err := b.complete(r.Context(), r.out("x")); !errors.Is(err, outbox.ErrTransaction) {
			r.Errorf("%s: complete: got %v, want ErrTransaction", name, err)
		}
		r.ok(b.ledger.Release(r.Context(), b.claim, nil, nil))
	}
	r.tables("rolled back", 0, 0, 0)

	ctx, cancel := context.WithCancel(r.Context())
	b := r.handed(r.first, "returned")
	tx, err := outbox.Tx(b.handler(ctx))
	r.ok(err)
	r.execIn(tx, "INSERT INTO effects (event) VALUES ('y')")
	cancel() // what every handler's context meets when it has returned
	r.ok(b.complete(r.Context(), r.out("y")))
	r.tables("committed", 1, 1, 1)
	r.unused(r.first)
}

func unclaimed(r *ledgerRig) {
	b := r.handed(r.first, "1")
	_, err := outbox.Tx(r.Context())
	r.is("outside of a handler", err, outbox.ErrNoHandler)
	r.ok(b.complete(r.Context()))
	_, err = outbox.Tx(b.handler(r.Context()))
	r.is("after the event", err, outbox.ErrNoHandler)
	r.unused(r.first)
}
