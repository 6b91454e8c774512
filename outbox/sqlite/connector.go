package sqlite

import (
	"context"
	"database/sql/driver"
	"io"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
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
	return &connector{Connector: c, writers: newWriters()}, nil
}

// openGate opens the gate of a database that is there, and finds its log, before
// anybody writes.
func (c *connector) openGate(path string) (err error) {
	file, err := filepath.EvalSymlinks(path) // as SQLite does: its log is beside the file, not the link
	if err != nil {
		return err
	}
	c.writers.syncs.sync = func() error { return syncLog(file) }
	c.writers.gate, err = openGate(path)
	return err
}

// Driver is SQLite's, and tells relays of commits.
func (c *connector) Driver() driver.Driver { return watcher{c.Connector.Driver()} }

// Close is called when the pool is closed.
func (c *connector) Close() error {
	if c.writers.gate == nil {
		return nil
	}
	return c.writers.gate.close()
}

// Connect tries again while the file is locked: of processes that turn a new file to
// WAL at the same moment only one can, and for that SQLite does not wait.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	const pause = 2 * time.Millisecond
	for deadline := time.Now().Add(otherProcesses); ; {
		made, err := c.Connector.Connect(ctx)
		if err == nil {
			return newConnection(made, c.writers)
		}
		if !isBusy(err) || time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
