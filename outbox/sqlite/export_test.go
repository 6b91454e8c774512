package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// Waiting counts the writers that wait for their turn.
func Waiting(db *sql.DB) int {
	n := 0
	conn, err := db.Conn(context.Background())
	if err != nil {
		panic(err)
	}
	err = conn.Raw(func(c any) error {
		q := &c.(*connection).writers.queue
		q.mu.Lock()
		defer q.mu.Unlock()
		n = q.waiting.Len()
		return nil
	})
	if err = errors.Join(err, conn.Close()); err != nil {
		panic(err)
	}
	return n
}

// HoldGate takes the gate of a database as another process would, and returns
// what gives it back; false if it is not free.
func HoldGate(path string) (leave func() error, ok bool, err error) {
	g, err := openGate(path)
	if err != nil {
		return nil, false, err
	}
	if lock(g.file) != nil {
		return nil, false, g.file.Close()
	}
	return g.file.Close, true, nil
}
