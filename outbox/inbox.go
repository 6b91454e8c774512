package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

var (
	// ErrNoClaim is returned by [Inbox.Begin] outside of a handler: the event
	// is not being handled by the consumer whose ledger has this inbox, or no longer.
	ErrNoClaim = errors.New("outbox: event is not being handled")
	// ErrTransaction is returned when an event cannot be completed because the
	// transaction of its handler is over: the handler has committed it or
	// rolled it back itself, or ran for longer than its context.
	ErrTransaction = errors.New("outbox: the handler's transaction is over")
)

// Inbox keeps the marks of handled events in the database, beside what the
// handlers change there: the database of dedup.NewSQL. It is safe for concurrent
// use and holds no connection while no handler works in it.
//
// A handler asks for its transaction with [Inbox.Begin]. What it changes there
// is committed together with the event's done mark and the events that it
// returns, and rolled back if it fails. A handler that does not ask has its
// mark and events committed all the same.
//
// Handlers hold one connection each while they work in a transaction. Of a pool
// with a limit ([sql.DB.SetMaxOpenConns], before the first Begin) they leave a
// quarter to ledger and relay, which renew leases meanwhile: with 24 connections
// 18 handlers work at once and others wait in Begin. A limit needs to be four at
// the least.
//
// SQLite has one writer (package sqlite says how they queue): a handler should
// wait for nothing else while its transaction is open.
type Inbox struct {
	outbox *Outbox
	sql    inboxStatements

	mu    sync.Mutex
	works map[workKey]*work // the latest of each event
}

type workKey struct {
	consumer event.Consumer
	event    event.EventKey
}

// Inbox returns a new inbox in the same database. One ledger and the handlers
// of its consumer share one.
func (o *Outbox) Inbox() *Inbox {
	return &Inbox{outbox: o, sql: inboxStatementsOf(o.cfg.Dialect, o.cfg.Prefix), works: map[workKey]*work{}}
}

// Begin returns the transaction in which a handler works on e, the same one
// each time it is called in one run. ctx, which ends what waiting there is, is
// the handler's own or derived from it: when it ends by its timeout, by a lost
// lease or by a shutdown, the transaction is rolled back at once, whatever the
// handler does.
//
// The transaction belongs to the inbox. The handler must neither commit it nor
// roll it back: it could not be completed then ([ErrTransaction]), would be
// handled again, and what it had committed itself would happen again. To undo
// what was done, return an error.
//
// Errors match [ErrNoClaim]; [ErrDatabase] and why ctx has ended, if that was
// over before; or [ErrDatabase] and [bus.ErrUnavailable], and then often the reason
// why ctx has ended. A consumer whose handler returns the latter waits for the
// database and spends no attempt.
func (i *Inbox) Begin(ctx context.Context, c event.Consumer, e event.Event) (*sql.Tx, error) {
	w := i.workOf(c, event.EventKeyOf(e))
	if w == nil {
		return nil, fmt.Errorf("%w: %s, source %q, id %q", ErrNoClaim, c, e.Source(), e.ID())
	}
	return w.begin(ctx)
}

// Admit lets the handler of an event begin a transaction, until leave. It is
// for the ledger.
func (i *Inbox) Admit(c event.Consumer, k event.EventKey) (
	commit func(ctx context.Context, after uint64, mark []byte, lifetime time.Duration, out []*nats.Msg) (revision uint64, err error), leave func(),
) {
	w := &work{inbox: i, key: workKey{c, k}}
	i.mu.Lock()
	earlier := i.works[w.key]
	i.works[w.key] = w
	i.mu.Unlock()
	if earlier != nil {
		earlier.leave()
	}
	return w.commit, w.leave
}

func (i *Inbox) workOf(c event.Consumer, k event.EventKey) *work {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.works[workKey{c, k}]
}

func (i *Inbox) forget(w *work) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.works[w.key] == w {
		delete(i.works, w.key)
	}
}

// work is one run of an event's handler, from Admit to leave. Handlers that the
// ledger lets run again without a new claim are the same work.
type work struct {
	inbox *Inbox
	key   workKey

	mu   sync.Mutex
	tx   *transaction // the handler's, while it is open
	left bool
	// spent says that the handler's transaction is over and its event not
	// completed: without another one there is nothing to commit.
	spent bool
}

func (w *work) begin(ctx context.Context) (*sql.Tx, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.left:
		return nil, fmt.Errorf("%w: %s %s", ErrNoClaim, w.key.consumer, w.key.event)
	case w.tx != nil:
		return w.tx.Tx, nil
	case ctx.Err() != nil: // the handler comes too late, whatever the database does
		return nil, fmt.Errorf("%w: begin: %w", ErrDatabase, context.Cause(ctx))
	}
	t, err := w.inbox.begin(ctx)
	if err != nil {
		return nil, unavailable{err}
	}
	w.tx, w.spent = t, false
	return t.Tx, nil
}

// commit is dedup.Commit.
func (w *work) commit(ctx context.Context, after uint64, mark []byte, lifetime time.Duration, out []*nats.Msg) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tx
	switch {
	case t == nil && w.spent:
		return 0, w.cannot(ctx, after)
	case t == nil:
		if t, err = w.inbox.begin(ctx); err != nil {
			return 0, err
		}
		defer t.end()
	default:
		defer func() {
			if !errors.Is(err, bus.ErrConflict) {
				w.tx, w.spent = nil, err != nil
				t.end()
			}
		}()
	}
	if revision, err = w.inbox.complete(ctx, t, w.key, after, mark, lifetime, out); w.tx == t && t.over(err) {
		err = w.cannot(ctx, after)
	}
	return revision, err
}

// cannot says why an event whose handler's transaction is over cannot be
// completed: because it has been, or because others own it; else for just that.
func (w *work) cannot(ctx context.Context, after uint64) error {
	_, revision, _, err := w.inbox.Read(ctx, w.key.consumer, w.key.event)
	switch {
	case err != nil:
		return err
	case revision != after:
		return conflict(w.key)
	}
	return fmt.Errorf("%w: %s %s", ErrTransaction, w.key.consumer, w.key.event)
}

func (w *work) leave() {
	w.inbox.forget(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = true
	if w.tx != nil {
		w.tx.end()
		w.tx, w.spent = nil, true
	}
}
