package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	lib "modernc.org/sqlite/lib"
)

// driverConn is what the driver's connections can do for database/sql.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	IsReadOnly(schema string) (bool, error)
}

// connection has its writers queue. database/sql lets one goroutine use it at a time.
type connection struct {
	driverConn
	writers *writers
	// inTx says that a transaction is open; it has the turn, or only reads.
	inTx bool
	// doubtful says that SQLite may have ended the transaction before its owner did.
	doubtful bool
	prepared prepared
	// bySQL says that one may be open that was begun as a statement. Nobody
	// could tell when it ends, so it does not queue.
	bySQL bool
}

var _ driverConn = (*connection)(nil)

// Unwrap returns the driver's connection, for what only that can do.
func (c *connection) Unwrap() driver.Conn { return c.driverConn }

// Close closes the statements, too: with one that is open SQLite keeps the file.
func (c *connection) Close() error { return errors.Join(c.prepared.close(), c.driverConn.Close()) }

// BeginTx waits for its turn and keeps it until the transaction ends.
func (c *connection) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	var t turn
	if !opts.ReadOnly {
		var err error
		if t, err = c.writers.enter(ctx); err != nil {
			return nil, err
		}
	}
	var begun driver.Tx
	err := patiently(ctx, func() (err error) {
		begun, err = c.driverConn.BeginTx(ctx, opts)
		return err
	})
	if err != nil {
		t.end()
		return nil, err
	}
	t.locked()
	c.inTx = true
	return &transaction{begun, c, t}, nil
}

// transaction ends its turn when it ends, well or not: after an error the driver
// has rolled back.
type transaction struct {
	driver.Tx
	conn *connection
	turn turn
}

func (t *transaction) Commit() error {
	if err := t.conn.stillOpen(context.Background()); err != nil {
		return errors.Join(err, t.Rollback())
	}
	return t.end(t.Tx.Commit())
}

func (t *transaction) Rollback() error {
	if t.conn.stillOpen(context.Background()) != nil {
		return t.end(nil)
	}
	return t.end(t.Tx.Rollback())
}

// end waits for the disk in any case: whoever rolls back has a reason, and that
// may be what others have committed a moment ago.
func (t *transaction) end(err error) error {
	t.conn.inTx, t.conn.doubtful = false, false
	t.turn.end()
	if err != nil {
		return err
	}
	return t.conn.writers.syncs.wait()
}

// ResetSession is called when somebody else takes the connection from the pool.
func (c *connection) ResetSession(ctx context.Context) error {
	c.bySQL = false
	return c.driverConn.ResetSession(ctx)
}

// doubt is told what became of a statement. One that fails can take the whole
// transaction along (interrupted, disk full, ON CONFLICT ROLLBACK); others can
// end it.
func (c *connection) doubt(query string, err error) {
	if c.inTx && (err != nil || !isOne(query) || kindOf(query) == control) {
		c.doubtful = true
	}
}

// stillOpen returns errRolledBack if SQLite has ended the transaction: what comes
// next in it would be committed by itself, without what was before. The driver
// does not say so, but within a transaction SQLite refuses to begin one.
func (c *connection) stillOpen(ctx context.Context) error {
	if !c.inTx || !c.doubtful {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, err := c.driverConn.ExecContext(ctx, "BEGIN", nil)
	if code(err) == lib.SQLITE_ERROR {
		c.doubtful = false
		return nil
	}
	_, failed := c.driverConn.ExecContext(ctx, "ROLLBACK", nil)
	return errors.Join(errRolledBack, err, failed)
}

// turnOf waits for the turn of a statement, if it needs one.
func (c *connection) turnOf(ctx context.Context, query string) (turn, error) {
	if err := c.stillOpen(ctx); err != nil {
		return turn{}, err
	}
	if !c.inTx && !c.bySQL {
		switch kindOf(query) {
		case write:
			return c.writers.enter(ctx)
		case control:
			c.bySQL = true
		case read, unsure:
		}
	}
	return turn{}, nil
}

// script runs several statements, of which nobody could tell how many were done:
// SQLite waits for other processes, for each.
func (c *connection) script(ctx context.Context, run func() error) error {
	if err := c.patience(ctx, otherProcesses.Milliseconds()); err != nil {
		return err
	}
	err := run()
	if failed := c.patience(context.WithoutCancel(ctx), tryFor.Milliseconds()); err == nil {
		err = failed
	}
	return err
}

func (c *connection) patience(ctx context.Context, ms int64) error {
	_, err := c.driverConn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout(%d)", ms), nil)
	return err
}

// ExecContext waits for its turn.
func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	t, err := c.turnOf(ctx, query)
	if err != nil {
		return nil, err
	}
	var r driver.Result
	if isOne(query) {
		r, err = c.execOne(ctx, query, args)
	} else {
		err = c.script(ctx, func() (err error) {
			r, err = c.driverConn.ExecContext(ctx, query, args)
			return err
		})
	}
	c.doubt(query, err)
	if err != nil {
		t.end() // of several statements some may be committed: nobody is told so
		return nil, err
	}
	return r, c.ended(t, query)
}

func (c *connection) execOne(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.prepared.put(query, s)) }()
	err = patiently(ctx, func() (err error) {
		r, err = s.ExecContext(ctx, args)
		return err
	})
	return r, err
}

// take prepares a statement, unless that was done before. To do so reads the
// schema, which can meet a lock.
func (c *connection) take(ctx context.Context, query string) (s driverStmt, err error) {
	err = patiently(ctx, func() (err error) {
		s, err = c.prepared.take(ctx, c.driverConn, query)
		return err
	})
	return s, err
}

// ended ends the turn of a statement that was run, and waits for the disk unless
// its transaction goes on.
func (c *connection) ended(t turn, query string) error {
	if t.writers == nil && !c.inTx && (c.bySQL || !isOne(query) || kindOf(query) == unsure) {
		return c.writers.syncs.wait() // it may have been, or have had, the commit
	}
	return t.done()
}

// QueryContext waits for its turn if query changes something (RETURNING), and
// keeps it until the rows are closed.
func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	t, err := c.turnOf(ctx, query)
	if err != nil {
		return nil, err
	}
	found, after, err := c.find(ctx, query, args)
	c.doubt(query, err)
	if err != nil {
		t.end()
		return nil, err
	}
	r, ok := found.(driverRows)
	if !ok {
		t.end()
		return nil, errors.Join(lacking(found), found.Close(), after())
	}
	t.locked()
	return &rows{r, c, func(err error) error {
		if err = errors.Join(err, after()); err != nil {
			c.doubt(query, err)
			t.end()
			return err
		}
		return c.ended(t, query)
	}}, nil
}

// find returns rows, and what is to be done when they are closed.
func (c *connection) find(ctx context.Context, query string, args []driver.NamedValue) (found driver.Rows, after func() error, err error) {
	if !isOne(query) {
		err = c.script(ctx, func() (err error) {
			found, err = c.driverConn.QueryContext(ctx, query, args)
			return err
		})
		return found, func() error { return nil }, err
	}
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, nil, err
	}
	after = func() error { return c.prepared.put(query, s) }
	err = patiently(ctx, func() (err error) {
		found, err = s.QueryContext(ctx, args)
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(err, after())
	}
	return found, after, nil
}

// PrepareContext returns a statement that does as ExecContext and QueryContext do.
func (c *connection) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if !isOne(query) {
		return &statement{c, query}, nil
	}
	s, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	return &statement{c, query}, c.prepared.put(query, s)
}

// lacking says that the driver is not the one this package was written for.
func lacking(v any) error { return fmt.Errorf("sqlite: the driver's %T lacks a method", v) }
