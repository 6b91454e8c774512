package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/rest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/payment"
)

const (
	restPoll  = 50 * time.Millisecond
	restLooks = 2 // how many snapshots in a row must find nothing to do
)

// errRestless is returned when something is left to do and nothing happens any more.
var errRestless = errors.New("demo: the system does not come to rest")

// awaitRest waits until no service has anything to do: no consumer has an
// event that is undelivered or not settled, and the outbox in db has no row that
// is unpublished.
func awaitRest(ctx context.Context, b *bus.Bus, db *database.Database) error {
	o, err := db.Outbox(outbox.Config{Names: b.Names()})
	if err != nil {
		return err
	}
	tick := time.NewTicker(restPoll)
	defer tick.Stop()
	before := snapshot{open: -1} // nothing has been seen yet
	for calm := 0; calm < restLooks; {
		now, err := takeSnapshot(ctx, b, o)
		switch {
		case err == nil && now.open == 0 && now.last == before.last:
			calm++
		case err == nil && now.open == 0:
			calm = 1
		case err == nil:
			calm = 0
		case ctx.Err() == nil:
			return err
		}
		if err == nil {
			before = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if before.open < 0 {
				return fmt.Errorf("%w: nothing could be counted in time: %w", errRestless, context.Cause(ctx))
			}
			return fmt.Errorf("%w: %d events are open: %w", errRestless, before.open, context.Cause(ctx))
		}
	}
	return nil
}

// snapshot is what was left to do at one moment.
type snapshot struct {
	open int // events and rows
	// last is the stream's last sequence. If it changes between two snapshots, a row
	// may have become an event between the counts of rows and of events, and be in
	// neither.
	last uint64
}

// takeSnapshot counts the rows that are unpublished and the events that consumers have
// not settled.
func takeSnapshot(ctx context.Context, b *bus.Bus, o *outbox.Outbox) (s snapshot, err error) {
	rows, err := o.Stats(ctx)
	if err != nil {
		return snapshot{}, fmt.Errorf("demo: look at the outbox: %w", err)
	}
	open, last, err := rest.Open(ctx, b, payment.Name, inventory.Name)
	if err != nil {
		return snapshot{}, fmt.Errorf("demo: %w", err)
	}
	return snapshot{open: open + int(rows.Pending+rows.Processing), last: last}, nil
}
