package outbox

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// transaction is a database transaction that outlives the context with which
// it was begun, if that ends because the work is done.
type transaction struct {
	*sql.Tx
	cancel context.CancelFunc // rolls back
	unhook func() bool        // from the context
	leave  func()             // gives the handler's place back
}

// begin begins a transaction. ctx bounds the waiting. If ctx ends, the
// transaction is rolled back, unless somebody has cancelled ctx without a cause:
// that is what a handler's return looks like.
func (o *Outbox) begin(ctx context.Context) (*transaction, error) {
	leave, err := o.enter(ctx)
	if err != nil {
		return nil, fault("begin", err)
	}
	held, cancel := context.WithCancel(context.WithoutCancel(ctx))
	waiting := context.AfterFunc(ctx, cancel)
	tx, err := o.db.BeginTx(held, nil)
	if !waiting() {
		err = errors.Join(err, context.Cause(ctx)) // database/sql rolls back what was begun
	}
	if err != nil {
		cancel()
		leave()
		return nil, fault("begin", err)
	}
	t := &transaction{Tx: tx, cancel: cancel, leave: leave}
	t.unhook = context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.cancel()
		}
	})
	return t, nil
}

// end rolls back what has not been committed. Doing it again is fine.
func (t *transaction) end() {
	t.unhook()
	//nolint:errcheck // it is committed, or rolled back already, or the connection is broken, which rolls it back
	_ = t.Rollback()
	t.cancel()
	t.leave()
}

// enter waits for a place among those who may hold a connection. leave may be
// called again.
func (o *Outbox) enter(ctx context.Context) (leave func(), err error) {
	room := o.room()
	if room == nil {
		return func() {}, nil
	}
	select {
	case room <- struct{}{}:
		return sync.OnceFunc(func() { <-room }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// over reports whether err says that the transaction had ended before.
func (t *transaction) over(err error) bool {
	return errors.Is(err, sql.ErrTxDone) || errors.Is(err, context.Canceled)
}
