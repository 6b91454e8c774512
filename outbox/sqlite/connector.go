package sqlite

import (
	"context"
	"database/sql/driver"
	"io"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
)

const (
	// otherProcesses is how long a writer waits for those of other processes.
	otherProcesses = 10 * time.Second
	// tryFor is how long SQLite itself tries (busy_timeout) before patiently
	// has it begin anew. Its pauses grow to 100 ms, and a process that commits
	// again and again leaves the lock free for moments only; tries that are at
	// most 25 ms apart hit one soon.
	tryFor = 100 * time.Millisecond
	// breather is between two tries of patiently: SQLite does not always wait.
	breather = 2 * time.Millisecond
)

// connector makes connections to one file, whose writers take turns.
type connector struct {
	driver.Connector
	writers *writers
}

var _ io.Closer = (*connector)(nil)

func newConnector(path string) (*connector, error) {
	c, err := sqlite.NewConnector(dataSource(path))
	if err != nil {
		return nil, err
	}
	return &connector{Connector: c, writers: &writers{}}, nil
}

// openGate opens the gate of a database that is there, and finds its files,
// before anybody writes.
func (c *connector) openGate(path string) (err error) {
	file, err := filepath.EvalSymlinks(path) // as SQLite does: its log is beside the file, not the link
	if err != nil {
		return err
	}
	c.writers.syncs.sync = func() error { return syncLog(file) }
	c.writers.gate, err = openGate(path)
	return err
}

// Close is called when the pool is closed.
func (c *connector) Close() error {
	if c.writers.gate == nil {
		return nil
	}
	return c.writers.gate.close()
}

// Connect tries again while the file is locked: of processes that turn a new
// file to WAL at the same moment only one can.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	var made driver.Conn
	err := patiently(ctx, func() (err error) {
		made, err = c.Connector.Connect(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	conn, ok := made.(driverConn)
	if !ok {
		return nil, lacking(made)
	}
	return &connection{driverConn: conn, writers: c.writers, prepared: prepared{}}, nil
}

// patiently calls f until it does not meet a lock of another process, or has met
// one for too long. f must be such that it has done nothing if it did.
func patiently(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(otherProcesses)
	for {
		err := f()
		if !isBusy(err) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(breather):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
