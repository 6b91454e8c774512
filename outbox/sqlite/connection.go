package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"modernc.org/sqlite"
)

// driverConn is what this package needs of the driver's connections.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	sqlite.HookRegisterer
	IsReadOnly(schema string) (bool, error)
}

// connection is a driver's connection that queues before it writes, and waits for
// the disk after it has committed. database/sql lets one goroutine use it at a time.
type connection struct {
	driverConn
	writers  *writers
	prepared prepared
	// inTx says that a transaction of BeginTx is open. It has the turn, or only reads.
	inTx bool
	// bySQL says that a transaction may be open that a statement has begun. Nobody
	// can tell when it ends, so its statements do not queue.
	bySQL bool

	// SQLite's hooks set these while a statement runs.
	committed bool // something was committed, and nobody has waited for the disk since
	ended     bool // the open transaction is over before its owner has ended it
}

var _ driver.Conn = (*connection)(nil)

func newConnection(made driver.Conn, w *writers) (*connection, error) {
	conn, ok := made.(driverConn)
	if !ok {
		return nil, errors.Join(lacking(made), made.Close())
	}
	c := &connection{driverConn: conn, writers: w, prepared: prepared{}}
	conn.RegisterCommitHook(func() int32 {
		c.committed, c.ended = true, c.inTx
		return 0 // go on
	})
	conn.RegisterRollbackHook(func() { c.ended = c.inTx })
	return c, nil
}

// lacking says that the driver is not the one this package was written for.
func lacking(v any) error { return fmt.Errorf("sqlite: the driver's %T lacks a method", v) }

// Unwrap returns the driver's connection, for what only that can do.
func (c *connection) Unwrap() driver.Conn { return c.driverConn }

// Close closes the prepared statements, too: with an open one SQLite keeps the file.
func (c *connection) Close() error { return errors.Join(c.prepared.close(), c.driverConn.Close()) }

// ResetSession is called when somebody else takes the connection from the pool.
func (c *connection) ResetSession(ctx context.Context) error {
	c.bySQL = false
	return c.driverConn.ResetSession(ctx)
}

// BeginTx waits for its turn, which ends with the transaction. Transactions that
// only read need none.
func (c *connection) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	var t turn
	if !opts.ReadOnly {
		var err error
		if t, err = c.writers.enter(ctx); err != nil {
			return nil, err
		}
	}
	begun, err := c.driverConn.BeginTx(ctx, opts)
	if err != nil {
		t.end()
		return nil, err
	}
	t.locked()
	c.inTx, c.ended = true, false
	return &transaction{begun, c, t}, nil
}

// transaction is a driver's transaction with its turn.
type transaction struct {
	driver.Tx
	conn *connection
	turn turn
}

// Commit returns errRolledBack if SQLite has ended the transaction before.
func (t *transaction) Commit() error {
	if t.conn.ended {
		return errors.Join(errRolledBack, t.Rollback())
	}
	return t.end(t.Tx.Commit)
}

func (t *transaction) Rollback() error {
	if t.conn.ended {
		return t.end(func() error {
			t.Tx.Rollback() //nolint:errcheck // it fails, unless a script has begun another transaction
			return nil
		})
	}
	return t.end(t.Tx.Rollback)
}

// end waits for the disk in any case: whoever rolls back has a reason, and that
// may be what others have committed a moment ago.
func (t *transaction) end(how func() error) error {
	t.conn.inTx = false // from here on a hook tells of what the owner wants
	err := how()
	t.turn.end()
	if err != nil {
		return err
	}
	t.conn.committed = false
	return t.conn.writers.syncs.wait()
}

// ExecContext waits for its turn if query writes.
func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	t, err := c.turnOf(ctx, query)
	if err != nil {
		return nil, err
	}
	r, err := c.exec(ctx, query, args)
	return r, c.done(t, err)
}

// QueryContext waits for its turn if query writes (RETURNING), and keeps it until
// the rows are closed: only then SQLite commits.
func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	t, err := c.turnOf(ctx, query)
	if err != nil {
		return nil, err
	}
	r, put, err := c.query(ctx, query, args)
	if err != nil {
		return nil, c.done(t, err)
	}
	t.locked()
	return &rows{r, func(err error) error { return c.done(t, errors.Join(err, put())) }}, nil
}

// PrepareContext returns a statement that does as ExecContext and QueryContext do.
func (c *connection) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if isOne(query) { // a script may name tables that it makes
		s, err := c.prepared.take(ctx, c.driverConn, query)
		if err == nil {
			err = c.prepared.put(query, s)
		}
		if err != nil {
			return nil, err
		}
	}
	return &statement{c, query}, nil
}

// turnOf waits for the turn of a statement, if it needs one.
func (c *connection) turnOf(ctx context.Context, query string) (turn, error) {
	kind := kindOf(query)
	switch {
	case c.inTx && c.ended:
		return turn{}, errRolledBack // it would be committed by itself, without what was before
	case c.inTx:
		c.ended = kind == commit // SQLite calls no hook for a commit of nothing
	case c.bySQL:
	case kind == write:
		return c.writers.enter(ctx)
	case kind == control:
		c.bySQL = true
	}
	return turn{}, nil
}

// done ends the turn of a statement that has ended with err, and waits for the disk
// if something was committed. Whoever gets an error does not wait: what was committed
// all the same, by the first statements of a script, nobody is told.
func (c *connection) done(t turn, err error) error {
	t.end()
	if err != nil || !c.committed {
		return err
	}
	c.committed = false
	return c.writers.syncs.wait()
}

// exec runs one prepared statement, or a script.
func (c *connection) exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !isOne(query) {
		return c.driverConn.ExecContext(ctx, query, args)
	}
	s, err := c.prepared.take(ctx, c.driverConn, query)
	if err != nil {
		return nil, err
	}
	r, err := s.ExecContext(ctx, args)
	return r, errors.Join(err, c.prepared.put(query, s))
}

// query runs one prepared statement, or a script. Once the rows are closed, put
// has to be called.
func (c *connection) query(ctx context.Context, query string, args []driver.NamedValue) (r driverRows, put func() error, err error) {
	var found driver.Rows
	put = func() error { return nil }
	if isOne(query) {
		s, err := c.prepared.take(ctx, c.driverConn, query)
		if err != nil {
			return nil, nil, err
		}
		put = func() error { return c.prepared.put(query, s) }
		found, err = s.QueryContext(ctx, args)
		if err != nil {
			return nil, nil, errors.Join(err, put())
		}
	} else if found, err = c.driverConn.QueryContext(ctx, query, args); err != nil {
		return nil, nil, err
	}
	r, ok := found.(driverRows)
	if !ok {
		return nil, nil, errors.Join(lacking(found), found.Close(), put())
	}
	return r, put, nil
}
