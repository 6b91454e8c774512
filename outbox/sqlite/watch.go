package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/outbox"
)

// watchEvery is how often Watch asks whether the file has changed. To ask is a look at
// shared memory: some microseconds.
const watchEvery = 25 * time.Millisecond

// Watch wakes a relay within 25 ms after another connection, of this or another
// process, has committed to the file, whatever it has committed. It keeps one
// connection of db, which [Open] returned, to itself. When it has that it wakes the
// relay once, for what was committed before.
//
// It returns when ctx ends. When the file cannot be read it returns an error that
// matches [outbox.ErrDatabase]; the relay calls it again.
func Watch(db *sql.DB) outbox.Watch {
	return func(ctx context.Context, wake func()) error {
		err := watch(ctx, db, wake)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: watch: %w", outbox.ErrDatabase, err)
	}
}

func watch(ctx context.Context, db *sql.DB, wake func()) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	version, err := conn.PrepareContext(ctx, "PRAGMA data_version")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, version.Close()) }()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := int64(-1); ; {
		var now int64
		if err := version.QueryRowContext(ctx).Scan(&now); err != nil {
			return err
		}
		if now != last {
			last = now
			wake()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
