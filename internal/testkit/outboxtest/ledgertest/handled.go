package ledgertest

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

const (
	consumer = event.Consumer("payment")
	// soon is a generous bound for what must happen.
	soon = 60 * time.Second
)

// begun is an event that is being handled.
type begun struct {
	*process
	event event.Event
	claim *dedup.Claim
}

// handed is a first delivery of an event.
func (r *rig) handed(p *process, id string) begun {
	r.Helper()
	e, err := r.outbox.Seal(event.Draft{Type: "order.placed.v1", Key: "k", ID: id, ContentType: event.ContentTypeJSON, Data: []byte("{}")})
	r.ok(err)
	c, err := p.ledger.Claim(r.Context(), dedup.Request{Consumer: consumer, Key: event.EventKeyOf(e), Lease: time.Minute})
	r.ok(err)
	if c.Status != dedup.Claimed {
		r.Fatalf("claim of %s is %v", id, c.Status)
	}
	return begun{p, e, c}
}

// handler is the context of the event's handler.
func (b begun) handler(ctx context.Context) context.Context { return b.claim.Transaction.Context(ctx) }

// handle is what a handler does: it begins its transaction and changes something.
func (r *rig) handle(b begun) *sql.Tx {
	r.Helper()
	tx, err := outbox.Tx(b.handler(r.Context()))
	r.ok(err)
	r.exec(tx, "INSERT INTO effects (event) VALUES ($1)", b.event.ID())
	return tx
}

func (b begun) complete(ctx context.Context, out ...*nats.Msg) error {
	return b.ledger.Complete(ctx, b.claim, out)
}

func (r *rig) exec(tx outbox.Execer, query string, args ...any) {
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

func (r *rig) letter(b begun) *nats.Msg {
	k := event.EventKeyOf(b.event)
	return &nats.Msg{Subject: r.bus.Names().DeadLetterSubject(consumer, event.ReasonPermanent, k), Header: nats.Header{nats.MsgIdHdr: {string(k)}}}
}
