package sqlite

import (
	"context"
	"database/sql/driver"
	"io"
	"regexp"
	"strings"
)

// driverStmt is what the driver's prepared statements can do.
type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// statement is a prepared one: the connection knows it by its text.
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

// rows end a turn when they are closed: only then a statement that changes rows
// and returns them commits. database/sql closes them once.
type rows struct {
	driverRows
	conn   *connection
	closed func(err error) error
}

// Next can be what ends a transaction: by an error of the disk.
func (r *rows) Next(dest []driver.Value) error {
	err := r.driverRows.Next(dest)
	if err != nil && err != io.EOF { //nolint:errorlint // as database/sql has it
		r.conn.doubtful = r.conn.inTx
	}
	return err
}

func (r *rows) Close() error { return r.closed(r.driverRows.Close()) }

// kind is what a statement does, as far as its first word tells.
type kind int

const (
	read    kind = iota
	write        // or unknown: to queue without need costs a moment
	control      // of a transaction
	unsure       // most read: to queue could be to wait for oneself
)

var (
	firstWord = regexp.MustCompile(`^(?:\s|--[^\n]*(?:\n|$)|(?s:/\*.*?\*/))*([A-Za-z]*)`)
	changing  = regexp.MustCompile(`(?i)\b(insert|update|delete|replace)\b`)
)

func kindOf(query string) kind {
	switch strings.ToUpper(firstWord.FindStringSubmatch(query)[1]) {
	case "SELECT", "VALUES", "EXPLAIN":
		return read
	case "PRAGMA":
		if strings.ContainsAny(query, "=(") { // as "PRAGMA user_version = 2" does, it may set something
			return unsure
		}
		return read
	case "WITH":
		if !changing.MatchString(query) {
			return read
		}
	case "BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE":
		return control
	}
	return write
}

// isOne reports whether a text is one statement for sure: a semicolon in a
// string makes it doubtful.
func isOne(query string) bool {
	return !strings.Contains(strings.TrimRight(query, "; \t\r\n"), ";")
}
