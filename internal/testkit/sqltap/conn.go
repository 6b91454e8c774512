package sqltap

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
)

// inner is a driver's connection.
type inner interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
}

// conn is a connection with the tap in between.
type conn struct {
	inner
	tap    *Tap
	taken  *sql.Conn // keeps the driver's connection from others
	open   driver.Tx // the driver's, while there is one
	broken bool
}

var (
	_ inner                    = (*conn)(nil)
	_ driver.Validator         = (*conn)(nil)
	_ driver.NamedValueChecker = (*conn)(nil)
)

// judge does what the hook says: do is the statement, and lost what becomes of
// its answer. A connection that is broken never reaches the database again.
func (c *conn) judge(statement string, do, lost func() error) error {
	if c.broken {
		return ErrBroken
	}
	verdict := Cut
	if !c.tap.isCut() {
		verdict = c.tap.hook(statement)
	}
	switch verdict {
	case Pass:
		return do()
	case Lose, LoseCut:
		err := do()
		if err == nil {
			err = lost()
		}
		if err != nil {
			return err
		}
	case Break, Cut:
	}
	if verdict == Cut || verdict == LoseCut {
		c.tap.Cut()
	}
	c.broken = true
	err := ErrBroken
	if c.open != nil {
		err = errors.Join(err, c.open.Rollback())
	}
	return err
}

// text is what a hook sees of a statement.
func text(query string, args []driver.NamedValue) string {
	var b strings.Builder
	b.WriteString(query)
	for _, a := range args {
		if v, ok := a.Value.(string); ok {
			b.WriteString("\n" + v)
		}
	}
	return b.String()
}

func nothing() error { return nil }

// CheckNamedValue is the driver's.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.inner.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	err = c.judge(text(query, args), func() error {
		r, err = c.inner.ExecContext(ctx, query, args)
		return err
	}, nothing)
	return r, err
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = c.judge(text(query, args), func() error {
		rows, err = c.inner.QueryContext(ctx, query, args)
		return err
	}, func() error { return rows.Close() })
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	err := c.judge("BEGIN", func() (err error) {
		c.open, err = c.inner.BeginTx(ctx, opts)
		return err
	}, nothing)
	if err != nil {
		return nil, err
	}
	return &tx{c}, nil
}

// tx is a connection's open transaction.
type tx struct{ conn *conn }

func (t *tx) Commit() error {
	return t.conn.judge("COMMIT", func() error {
		open := t.conn.open
		t.conn.open = nil
		return open.Commit()
	}, nothing)
}

// Rollback is not judged: whether it is sent or not, the transaction is over.
func (t *tx) Rollback() error {
	if t.conn.broken {
		return ErrBroken
	}
	open := t.conn.open
	t.conn.open = nil
	return open.Rollback()
}

// IsValid keeps broken connections from being used again.
func (c *conn) IsValid() bool { return !c.broken && !c.tap.isCut() }

// Close gives the connection up.
func (c *conn) Close() error { return c.discard() }

// discard closes the driver's connection and takes it out of the pool.
func (c *conn) discard() error {
	err := c.taken.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) {
		err = nil
	}
	return err
}
