package sqlite

import (
	"context"
	"database/sql/driver"
	"regexp"
	"strings"
)

// driverStmt is what the driver's prepared statements can do.
type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// statement is a prepared one.
type statement struct {
	driverStmt
	conn *connection
	text string
}

var _ driverStmt = (*statement)(nil)

func (s *statement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.exec(ctx, s.text, func() (driver.Result, error) { return s.driverStmt.ExecContext(ctx, args) })
}

func (s *statement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.query(ctx, s.text, func() (driver.Rows, error) { return s.driverStmt.QueryContext(ctx, args) })
}

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
	turn turn
}

func (r *rows) Close() error {
	defer r.turn.end()
	return r.driverRows.Close()
}

// kind is what a statement does, as far as its first word tells.
type kind int

const (
	read    kind = iota
	write        // or unknown: to queue without need costs a moment
	control      // of a transaction
)

var (
	firstWord = regexp.MustCompile(`^(?:\s|--[^\n]*(?:\n|$)|(?s:/\*.*?\*/))*([A-Za-z]*)`)
	changing  = regexp.MustCompile(`(?i)\b(insert|update|delete|replace)\b`)
)

func kindOf(query string) kind {
	switch strings.ToUpper(firstWord.FindStringSubmatch(query)[1]) {
	case "SELECT", "VALUES", "PRAGMA", "EXPLAIN":
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
