package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
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
	// bySQL says that one may be open that was begun as a statement. Nobody
	// could tell when it ends, so it does not queue.
	bySQL bool
}

var _ driverConn = (*connection)(nil)

// Unwrap returns the driver's connection, for what only that can do.
func (c *connection) Unwrap() driver.Conn { return c.driverConn }

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
	return &transaction{begun, func() {
		c.inTx = false
		t.end()
	}}, nil
}

// transaction ends its turn when it ends, well or not: after an error the driver
// has rolled back.
type transaction struct {
	driver.Tx
	end func()
}

func (t *transaction) Commit() error {
	defer t.end()
	return t.Tx.Commit()
}

func (t *transaction) Rollback() error {
	defer t.end()
	return t.Tx.Rollback()
}

// ResetSession is called when somebody else takes the connection from the pool.
func (c *connection) ResetSession(ctx context.Context) error {
	c.bySQL = false
	return c.driverConn.ResetSession(ctx)
}

// turnOf waits for the turn of a statement, if it needs one.
func (c *connection) turnOf(ctx context.Context, query string) (turn, error) {
	if !c.inTx && !c.bySQL {
		switch kindOf(query) {
		case write:
			return c.writers.enter(ctx)
		case control:
			c.bySQL = true
		case read:
		}
	}
	return turn{}, nil
}

// try runs a statement, or several, and waits for other processes.
func (c *connection) try(ctx context.Context, query string, run func() error) error {
	if isOne(query) {
		return patiently(ctx, run)
	}
	// Nobody could tell how many of them were done: SQLite waits for each.
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
	return c.exec(ctx, query, func() (driver.Result, error) { return c.driverConn.ExecContext(ctx, query, args) })
}

// QueryContext waits for its turn if query changes something (RETURNING), and
// keeps it until the rows are closed.
func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.query(ctx, query, func() (driver.Rows, error) { return c.driverConn.QueryContext(ctx, query, args) })
}

// PrepareContext returns a statement that does as ExecContext and QueryContext do.
func (c *connection) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	prepared, err := c.driverConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	s, ok := prepared.(driverStmt)
	if !ok {
		return nil, lacking(prepared)
	}
	return &statement{s, c, query}, nil
}

func (c *connection) exec(ctx context.Context, query string, run func() (driver.Result, error)) (r driver.Result, err error) {
	t, err := c.turnOf(ctx, query)
	if err != nil {
		return nil, err
	}
	defer t.end()
	err = c.try(ctx, query, func() (err error) {
		r, err = run()
		return err
	})
	return r, err
}

func (c *connection) query(ctx context.Context, query string, run func() (driver.Rows, error)) (driver.Rows, error) {
	t, err := c.turnOf(ctx, query)
	if err != nil {
		return nil, err
	}
	var found driver.Rows
	err = c.try(ctx, query, func() (err error) {
		found, err = run()
		return err
	})
	if err != nil {
		t.end()
		return nil, err
	}
	r, ok := found.(driverRows)
	if !ok {
		t.end()
		return nil, lacking(found)
	}
	t.locked()
	return &rows{r, t}, nil
}

// lacking says that the driver is not the one this package was written for.
func lacking(v any) error { return fmt.Errorf("sqlite: the driver's %T lacks a method", v) }
