package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// LedgerConfig are the choices of [NewLedger].
type LedgerConfig struct {
	// Retention is how long an event is remembered after its last change: a copy
	// that comes later is handled again. At least 1 s. Defaults to 24 h.
	Retention time.Duration
	// Claims makes a worker claim an event before its handler runs. It is for
	// handlers with effects outside the database, and costs one more transaction an
	// event. Without it two workers that get copies of one event at the same time
	// may both run the handler; one of their transactions is committed. Defaults to false.
	Claims bool
	// Relay are the choices of the relay that [Ledger.Run] runs. Its logger is the
	// ledger's, too. Defaults to a relay's defaults.
	Relay RelayConfig
	// NoRelay is for a process whose rows are published by a relay elsewhere, as
	// `farandole relay`, or by another ledger's. Defaults to false.
	NoRelay bool
}

// Ledger is a consumer's ledger in the service's own database. The mark that an
// event is handled, the events that follow from it, as rows of the outbox, and what
// its handler has changed in its transaction ([Tx]) are committed together. A
// relay publishes the rows: the consumer runs it ([Ledger.Run]).
//
// A handler that does not ask for its transaction has mark and rows committed all
// the same. The ledger holds no connection while no handler works in a transaction.
//
// Handlers hold one connection each while they work in a transaction. Of a pool
// with a limit ([sql.DB.SetMaxOpenConns], before the first event) they leave a
// quarter to ledger and relay, which renew leases meanwhile: with 24 connections
// 18 handlers work at once and others wait in Tx. A limit needs to be at least four.
//
// SQLite has one writer (package sqlite says how they queue): a handler should
// wait for nothing else while its transaction is open.
type Ledger struct {
	*dedup.Rules
	marks *marks
	relay *Relay // nil without one
}

var _ dedup.Ledger = (*Ledger)(nil)

// NewLedger returns a ledger in o's database. Dead letters, and messages that
// bring an event back later, are published on b at once; so is what a relay finds in
// the outbox. It does no I/O. Errors match [dedup.ErrConfig] or [ErrConfig].
func NewLedger(o *Outbox, b *bus.Bus, cfg LedgerConfig) (*Ledger, error) {
	cfg.Relay.Logger = b.LoggerOr(cfg.Relay.Logger)
	l := &Ledger{marks: &marks{outbox: o, sql: markStatementsOf(o.cfg.Dialect, o.cfg.Prefix)}}
	var err error
	if l.Rules, err = dedup.NewRules(b, l.marks, cfg.Retention, cfg.Claims, cfg.Relay.Logger); err != nil {
		return nil, fmt.Errorf("outbox: ledger: %w", err)
	}
	if !cfg.NoRelay {
		if l.relay, err = NewRelay(o, b, cfg.Relay); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Run publishes rows until ctx ends: see [Relay.Run].
func (l *Ledger) Run(ctx context.Context) error {
	if l.relay == nil {
		return l.Rules.Run(ctx)
	}
	return l.relay.Run(ctx)
}

// Health says why rows are not going out: see [Relay.Health].
func (l *Ledger) Health() error {
	if l.relay == nil {
		return nil
	}
	return l.relay.Health()
}

// Claim takes an event for this worker, or says why not. The handler of an event
// that it takes may begin a transaction, until the claim ends. Errors match
// [dedup.ErrConfig] or [dedup.ErrBadMark], or are the database's.
func (l *Ledger) Claim(ctx context.Context, r dedup.Request) (*dedup.Claim, error) {
	c, err := l.Rules.Claim(ctx, r)
	if err == nil && c.Status == dedup.Claimed {
		c.Transaction = &handlerRun{marks: l.marks, consumer: r.Consumer, event: r.Key}
	}
	return c, err
}

// Complete commits the handler's transaction with the done mark and out.
// Completing again is safe: a done mark that was stored is recognised, and what
// has lost its handler's transaction is not committed without it.
//
// Errors match [dedup.ErrLeaseLost] or [dedup.ErrSettled]; [dedup.ErrStale] when
// others were in the way of the transaction; [bus.ErrTooLarge] for a message that
// no relay could publish; or are the database's. After an error nothing is stored,
// or all of it; the handler's transaction is over, and after the last three the
// claim is still held.
func (l *Ledger) Complete(ctx context.Context, c *dedup.Claim, out []*nats.Msg) error {
	err := l.Rules.Complete(ctx, c, out)
	if err == nil || errors.Is(err, dedup.ErrLeaseLost) || errors.Is(err, dedup.ErrSettled) {
		endRun(c)
	}
	return err
}

// Release rolls the handler's transaction back and gives the event back. later is
// published before the mark is written.
func (l *Ledger) Release(ctx context.Context, c *dedup.Claim, failure *event.Attempt, later *nats.Msg) error {
	endRun(c) // first: on SQLite the mark would wait for the transaction
	return l.Rules.Release(ctx, c, failure, later)
}

// Park rolls the handler's transaction back, publishes the letter and then writes
// the parked mark.
func (l *Ledger) Park(ctx context.Context, c *dedup.Claim, failure *event.Attempt, letter *nats.Msg) error {
	endRun(c)
	return l.Rules.Park(ctx, c, failure, letter)
}

func endRun(c *dedup.Claim) {
	if r := runOf(c); r != nil {
		r.end()
	}
}
