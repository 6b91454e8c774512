package outbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/farandole/farandole/bus"
)

type sqliteError int

func (e sqliteError) Error() string { return fmt.Sprint("sqlite: ", int(e)) }
func (e sqliteError) Code() int     { return int(e) }

// The specification of excuse.
func TestExcuse(t *testing.T) {
	t.Parallel()
	state := func(s string) error { return &pgconn.PgError{Code: s} }
	for name, tt := range map[string]struct {
		err  error
		want error // nil: the transaction is to blame
	}{
		"deadlock":              {state("40P01"), bus.ErrBusy},
		"shut down":             {state("57P01"), bus.ErrUnavailable},
		"too many connections":  {state("53300"), bus.ErrUnavailable},
		"disk full":             {state("53100"), bus.ErrUnavailable},
		"became a standby":      {state("25006"), bus.ErrUnavailable},
		"statement timeout":     {state("57014"), bus.ErrUnavailable},
		"wrong password":        {state("28P01"), bus.ErrUnavailable},
		"foreign key":           {state("23503"), nil},
		"aborted transaction":   {state("25P02"), nil},
		"raised by a trigger":   {state("P0001"), nil},
		"SQLite: locked":        {sqliteError(5), bus.ErrBusy},
		"SQLite: I/O":           {sqliteError(10 | 3<<8), bus.ErrUnavailable},
		"SQLite: full":          {sqliteError(13), bus.ErrUnavailable},
		"SQLite: constraint":    {sqliteError(19 | 3<<8), nil},
		"network":               {&net.OpError{Op: "read", Err: errors.New("reset")}, bus.ErrUnavailable},
		"end of the connection": {io.ErrUnexpectedEOF, bus.ErrUnavailable},
		"bad connection":        {driver.ErrBadConn, bus.ErrUnavailable},
		"no answer in time":     {context.DeadlineExceeded, bus.ErrUnavailable},
		"something else":        {errors.New("value out of range"), nil},
	} {
		got := excuse(fmt.Errorf("commit: %w", tt.err))
		if !errors.Is(got, tt.err) {
			t.Errorf("%s: %v has lost its cause", name, got)
		}
		for _, sentinel := range []error{bus.ErrBusy, bus.ErrUnavailable} {
			if errors.Is(got, sentinel) != errors.Is(tt.want, sentinel) {
				t.Errorf("%s: %v matches %v: %v", name, got, sentinel, errors.Is(got, sentinel))
			}
		}
	}
}
