package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/farandole/farandole/bus"
)

// unavailable is an error that no event is to be blamed for.
type unavailable struct{ error }

func (u unavailable) Unwrap() error        { return u.error }
func (u unavailable) Is(target error) bool { return target == bus.ErrUnavailable }

// excuse gives a driver's error the sentinel that says why nobody's event is to
// blame: [bus.ErrBusy] when other transactions were in the way (a deadlock, a
// failed serialization, a lock not available in time), [bus.ErrUnavailable]
// when the database was not there, or could not work. What is left is what the
// database thinks of the transaction.
func excuse(err error) error {
	var postgres interface{ SQLState() string }
	var sqlite interface{ Code() int }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &postgres):
		return excusePostgres(err, postgres.SQLState())
	case errors.As(err, &sqlite):
		return excuseSQLite(err, sqlite.Code())
	case lost(err):
		return unavailable{err}
	}
	return err
}

// excusePostgres knows the classes of SQLSTATE.
func excusePostgres(err error, state string) error {
	switch state {
	case "40001", "40P01", "55P03":
		return fmt.Errorf("%w: %w", bus.ErrBusy, err)
	case "25P02":
		return fmt.Errorf("a statement of the handler failed and the handler went on: %w", err)
	case
		"25006", // read only: it became a standby, or its disk is full
		"25P03", // the session was ended while its transaction was idle
		"3D000", // no such database
		"42501", // a grant is missing
		"42P01", // the tables are missing
		"57014": // cancelled, by a timeout or a person
		return unavailable{err}
	}
	for _, class := range []string{
		"08",  // the connection
		"28",  // the login
		"53",  // out of disk, memory or connections
		"57P", // shut down, or starting
		"58",  // the system below it
	} {
		if strings.HasPrefix(state, class) {
			return unavailable{err}
		}
	}
	return err
}

// excuseSQLite knows SQLite's result codes; the lowest byte is the primary one.
func excuseSQLite(err error, code int) error {
	switch code & 0xff {
	case 5: // BUSY
		return fmt.Errorf("%w: %w", bus.ErrBusy, err)
	case
		7,  // NOMEM
		8,  // READONLY
		9,  // INTERRUPT
		10, // IOERR
		11, // CORRUPT
		13, // FULL
		14, // CANTOPEN
		15, // PROTOCOL
		26: // NOTADB
		return unavailable{err}
	}
	return err
}

// lost reports errors of the connection, and of waiting.
func lost(err error) bool {
	var network net.Error
	var unsent interface{ SafeToRetry() bool } // a driver's that never had a connection to say it on
	return errors.As(err, &network) || errors.As(err, &unsent) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
