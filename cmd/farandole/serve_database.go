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

// orderFile is order's SQLite database in the store.
const orderFile = "order.db"

// databasePoll is how often a database that is not up yet is tried again.
const databasePoll = 250 * time.Millisecond

// openDatabase opens order's database: Postgres if its URL is known, else the
// file in the store. It waits for a server that is not up yet.
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
	if err := awaitDatabase(ctx, db, s.connection.Wait); err != nil {
		return nil, fmt.Errorf("serve: order's database: %w", err)
	}
	return db, nil
}

// awaitDatabase waits for a server that is not up yet.
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
			last = err // the error of being cut off says less
		}
		if refuses(err) {
			return last
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", within, last)
		}
	}
}

// refuses says whether a server has answered, and will not answer otherwise
// however long one waits: it knows no such user, password or database.
func refuses(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return false
	}
	state := answer.SQLState()
	return strings.HasPrefix(state, "28") || strings.HasPrefix(state, "3D")
}
