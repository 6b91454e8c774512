package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

var (
	// ErrNoHandler is returned by [Tx] for a context that is not that of a handler
	// whose consumer has a [Ledger], and when the handler's run is over.
	ErrNoHandler = errors.New("outbox: not in a handler of a consumer with an outbox.Ledger")
	// ErrTransaction is returned when an event cannot be completed because the
	// transaction of its handler is over: the handler has committed it or
	// rolled it back itself, or ran for longer than its context.
	ErrTransaction = errors.New("outbox: the handler's transaction is over")
)

// Tx returns the transaction of the handler that has got ctx, or whose context ctx
// is derived from. The first call of a run begins the transaction, and the others
// return the same one. What the handler changes in it is committed with the mark that
// its event is handled and with the events that follow. It is rolled back if
// the handler fails.
//
// ctx bounds the waiting for the database. If ctx ends by its timeout, by a
// lost lease or by a shutdown, the transaction is rolled back at once, whatever the
// handler does.
//
// The handler must neither commit the transaction nor roll it back: the event
// could not be completed then ([ErrTransaction]) and would be handled again, and
// what the handler had committed itself would happen again. To undo what was
// done, return an error.
//
// Errors match [ErrNoHandler]; [ErrDatabase] and why ctx has ended, if it had
// ended before the call; or [ErrDatabase] and [bus.ErrUnavailable], and then often why ctx
// has ended. A consumer whose handler returns the latter waits for the database and
// spends no attempt.
func Tx(ctx context.Context) (*sql.Tx, error) {
	if tx, ok := ctx.Value(txKey{}).(*sql.Tx); ok {
		return tx, nil
	}
	r, ok := ctx.Value(runKey{}).(*handlerRun)
	if !ok {
		return nil, ErrNoHandler
	}
	return r.begin(ctx)
}

// WithTx returns a context in which [Tx] is tx, for tests that call a handler without a
// ledger (package bustest).
func WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// txKey is the key of what WithTx keeps.
type txKey struct{}

// runKey is the key of a [handlerRun] in its handler's context.
type runKey struct{}

// handlerRun is the time for which an event's handler may work in a transaction: from
// its claim until the claim ends. If the ledger lets a handler run again without a
// new claim ([dedup.ErrStale]), it is the same run with another transaction.
type handlerRun struct {
	marks    *marks
	consumer event.Consumer
	event    event.EventKey

	mu    sync.Mutex
	tx    *transaction // the handler's, while it is open
	ended bool
	// spent says that the handler's transaction is over and its event not
	// completed: without another one there is nothing to commit.
	spent bool
}

// runOf is nil for a claim that has no handler.
func runOf(c *dedup.Claim) *handlerRun {
	if c == nil || c.Transaction == nil {
		return nil
	}
	return c.Transaction.(*handlerRun)
}

// Context returns the context for the handler, in which Tx finds the run.
func (r *handlerRun) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, runKey{}, r)
}

func (r *handlerRun) begin(ctx context.Context) (*sql.Tx, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		return nil, fmt.Errorf("%w: the run for %s %s is over", ErrNoHandler, r.consumer, r.event)
	case r.tx != nil:
		return r.tx.Tx, nil
	case ctx.Err() != nil: // the handler comes too late, whatever the database does
		return nil, fmt.Errorf("%w: begin: %w", ErrDatabase, context.Cause(ctx))
	}
	t, err := r.marks.outbox.begin(ctx)
	if err != nil {
		return nil, unavailable{err}
	}
	r.tx, r.spent = t, false
	return t.Tx, nil
}

// commit writes a done mark and what goes with it, in the handler's transaction or,
// if there is none, in a new one. After a conflict the handler's transaction is still
// open: the mark may be this claim's own, renewed meanwhile. After any other
// error it has been rolled back, and nothing can be committed before the handler
// has begun another.
func (r *handlerRun) commit(ctx context.Context, w dedup.Write) (revision uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tx
	switch {
	case r.ended:
		return 0, conflict(w)
	case t == nil && r.spent:
		return 0, r.lost(ctx, w)
	case t == nil:
		if t, err = r.marks.outbox.begin(ctx); err != nil {
			return 0, err
		}
		defer t.end()
	default:
		defer func() {
			if !errors.Is(err, bus.ErrConflict) {
				r.tx, r.spent = nil, err != nil
				t.end()
			}
		}()
	}
	if revision, err = r.marks.complete(ctx, t, w); r.tx == t && t.over(err) {
		err = r.lost(ctx, w)
	}
	return revision, err
}

// lost says why an event whose handler's transaction is over cannot be completed:
// because it has been, or because others own it; else for just that.
func (r *handlerRun) lost(ctx context.Context, w dedup.Write) error {
	_, revision, _, err := r.marks.ReadMark(ctx, w.Consumer, w.Key)
	switch {
	case err != nil:
		return err
	case revision != w.After:
		return conflict(w)
	}
	return fmt.Errorf("%w: %s %s", ErrTransaction, w.Consumer, w.Key)
}

// end rolls back what is not committed. Doing it again is fine.
func (r *handlerRun) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.tx != nil {
		r.tx.end()
		r.tx = nil
	}
}
