package sqlite

import (
	"context"
	"database/sql/driver"
)

// driverStmt is what the driver's prepared statements can do.
type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// statement is what PrepareContext returns. The connection keeps the driver's own
// statement, and knows it by its text.
type statement struct {
	conn *connection
	text string
}

var (
	_ driver.StmtExecContext  = (*statement)(nil)
	_ driver.StmtQueryContext = (*statement)(nil)
)

func (s *statement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.text, args)
}

func (s *statement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.text, args)
}

// Exec is never called: database/sql prefers ExecContext.
func (s *statement) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }

// Query is never called: database/sql prefers QueryContext.
func (s *statement) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }

// NumInput leaves counting to the driver.
func (s *statement) NumInput() int { return -1 }

// Close leaves the statement to its connection.
func (s *statement) Close() error { return nil }

// driverRows is what the driver's rows can tell.
type driverRows interface {
	driver.Rows
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// rows call closed when they are closed. database/sql closes them once.
type rows struct {
	driverRows
	closed func(err error) error
}

func (r *rows) Close() error { return r.closed(r.driverRows.Close()) }
