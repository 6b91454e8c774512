package order

import (
	"context"
	"database/sql"
	"time"

	"github.com/farandole/farandole/services/events"
)

// An order's timer waits in NATS and is as safe as that. The table is what the
// service goes by: an order that is open although its deadline has long passed
// has lost its timer, and is undone without one.

const (
	// overdueAfter is how long after its deadline an order is overdue: longer
	// than a timer's event takes, and than the clocks of processes differ.
	overdueAfter = time.Minute
	// overdueEvery is how often they are looked for.
	overdueEvery = time.Minute
	// overdueFirst is how soon after the start, and again while it is not healthy.
	overdueFirst = time.Second
	// overdueBatch is how many are read at once.
	overdueBatch = 100
)

// watchOverdue undoes overdue orders until ctx ends. While NATS or the database
// are away orders are late for that reason, so it waits until the service is healthy.
func (s *Service) watchOverdue(ctx context.Context) {
	for delay := overdueFirst; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		if s.Health() != nil {
			delay = overdueFirst
			continue
		}
		delay = overdueEvery
		n, err := s.undoOverdue(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("overdue orders not looked for, will try again")
		}
		if n > 0 {
			s.log.Warn().Int("orders", n).Msg("orders without their timer were open after their deadline and are cancelled")
		}
	}
}

// undoOverdue does what the timers of overdue orders would have done, and
// reports for how many.
func (s *Service) undoOverdue(ctx context.Context) (undone int, err error) {
	before := now().Add(-s.deadline - overdueAfter)
	for {
		late, err := s.table.openBefore(ctx, s.db.DB, before, overdueBatch)
		if err != nil {
			return undone, err
		}
		for _, o := range late {
			if err := s.undo(ctx, o); err != nil {
				return undone, err
			}
			undone++
		}
		if len(late) < overdueBatch {
			return undone, nil
		}
	}
}

// undo is the deadline of one order. If others are faster it does nothing.
func (s *Service) undo(ctx context.Context, late Order) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		o, err := s.table.lock(ctx, tx, late.ID)
		if err != nil {
			return err
		}
		next, drafts, err := onDeadline(o, events.Deadline{OrderID: late.ID, Instance: late.Instance})
		if err != nil || next.Status == o.Status {
			return err
		}
		next.Updated = now()
		if err := s.table.update(ctx, tx, next); err != nil {
			return err
		}
		for _, d := range drafts {
			if err := s.tell(ctx, tx, o.eventID("cancel_requested"), d); err != nil {
				return err
			}
		}
		return nil
	})
}
