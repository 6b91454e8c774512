package outboxtest

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

// payment is the consumer whose events are handled.
const payment = event.Consumer("payment")

// begun is an event that is being handled.
type begun struct {
	*worker
	event event.Event
	claim *dedup.Claim
}

// handed is a first delivery of an event.
func (r *ledgerRig) handed(p *worker, id string) begun {
	r.Helper()
	e, err := r.outbox.Seal(event.Draft{Type: placed, Key: "k", ID: id, ContentType: event.ContentTypeJSON, Data: []byte("{}")})
	r.ok(err)
	c, err := p.ledger.Claim(r.Context(), dedup.Request{Consumer: payment, Key: event.EventKeyOf(e), Lease: time.Minute})
	r.ok(err)
	if c.Status != dedup.Claimed {
		r.Fatalf("claim of %s is %v", id, c.Status)
	}
	return begun{p, e, c}
}

// handler is the context of the event's handler.
func (b begun) handler(ctx context.Context) context.Context { return b.claim.Transaction.Context(ctx) }

// handle is what a handler does: it begins its transaction and changes something.
func (r *ledgerRig) handle(b begun) *sql.Tx {
	r.Helper()
	tx, err := outbox.Tx(b.handler(r.Context()))
	r.ok(err)
	r.execIn(tx, "INSERT INTO effects (event) VALUES ($1)", b.event.ID())
	return tx
}

func (b begun) complete(ctx context.Context, out ...*nats.Msg) error {
	return b.ledger.Complete(ctx, b.claim, out)
}

// out is an event that follows from another.
func (r *ledgerRig) out(id string) *nats.Msg {
	return &nats.Msg{
		Subject: r.bus.Names().EventSubject("payment.captured.v1", "k"),
		Header:  nats.Header{nats.MsgIdHdr: {id}}, Data: []byte(id),
	}
}

// tables checks how many changes of handlers, rows of the outbox and marks there are.
func (r *ledgerRig) tables(what string, effects, rows, marks int) {
	r.Helper()
	for table, want := range map[string]int{"effects": effects, "outbox": rows, "inbox": marks} {
		if got := r.count(table); got != want {
			r.Errorf("%s: %d rows in %s, want %d", what, got, table, want)
		}
	}
}

// unused waits until the process holds no connection.
func (r *ledgerRig) unused(p *worker) {
	r.Helper()
	bustest.Eventually(r, soon, func() bool { return p.db.Stats().InUse == 0 })
}

func (r *ledgerRig) is(what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func (r *ledgerRig) letter(b begun) *nats.Msg {
	k := event.EventKeyOf(b.event)
	return &nats.Msg{Subject: r.bus.Names().DeadLetterSubject(payment, event.ReasonPermanent, k), Header: nats.Header{nats.MsgIdHdr: {string(k)}}}
}
