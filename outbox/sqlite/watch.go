package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/outbox"
)

// watchEvery is how often Watch asks whether the file has changed. To ask is a look at
// shared memory: some microseconds.
const watchEvery = 25 * time.Millisecond

// watcher is a driver that tells a relay of commits.
type watcher struct{ driver.Driver }

var _ outbox.Watcher = watcher{}

// Watch wakes a relay within 25 ms after another connection, of this or another
// process, has committed to the file, whatever it has committed. It keeps one
// connection of db, which [Open] returned, to itself. When it has that it wakes the
// relay once, for what was committed before.
//
// It returns when ctx ends, or with an error, matching [outbox.ErrDatabase], when
// the file cannot be read. The relay calls it again then.
func (watcher) Watch(ctx context.Context, db *sql.DB, wake func()) error {
	err := watch(ctx, db, wake)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: watch: %w", outbox.ErrDatabase, err)
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
