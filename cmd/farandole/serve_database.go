package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/farandole/farandole/internal/database"
)

// orderFile is the name of order's SQLite database in the store.
const orderFile = "order.db"

// databasePoll is how often a database that is not up yet is tried again.
const databasePoll = 250 * time.Millisecond

// openDatabase opens order's database: Postgres if --database-url is set, else SQLite
// in the store. It waits for a database server that is not up yet.
func (s *serving) openDatabase(ctx context.Context) (*database.Database, error) {
	target := s.cmd.DatabaseURL
	if target == "" {
		target = filepath.Join(s.cmd.Store, orderFile)
	}
	db, err := database.Open(target)
	if err != nil {
		return nil, fmt.Errorf("serve: order's database: %w", err)
	}
	s.closeLater(db.Close)
	if err := awaitDatabase(ctx, db, s.connection.Wait.server); err != nil {
		return nil, fmt.Errorf("serve: order's database: %w", err)
	}
	return db, nil
}

// awaitDatabase waits until the database answers, at most as long as within says. It
// returns at once if the server refuses.
func awaitDatabase(ctx context.Context, db *database.Database, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(databasePoll)
	defer tick.Stop()
	var last error
	for {
		err := db.DB.PingContext(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // keep the reason: when time is up err is only "deadline exceeded"
		}
		if refuses(err) {
			return last
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", within, last)
		}
	}
}

// refuses reports whether the server has answered that it does not accept the user, or
// the password, or has no such database. Waiting does not help then.
func refuses(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return false
	}
	state := answer.SQLState()
	return strings.HasPrefix(state, "28") || strings.HasPrefix(state, "3D")
}
