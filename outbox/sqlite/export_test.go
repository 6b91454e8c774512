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
		q := c.(*connection).writers
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
