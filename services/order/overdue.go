package order

import (
	"context"
	"database/sql"
	"time"

	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/services/events"
)

// An order's timer is stored in NATS and can be lost with it. The table tells: an
// order that is still open a minute after its deadline has lost its timer, and the
// service cancels it without one.

const (
	// overdueAfter is how long after its deadline an order counts as overdue. It is
	// longer than the delivery of a timer's event, and longer than the clocks of two
	// processes may differ.
	overdueAfter = time.Minute
	// overdueEvery is how often the service looks for overdue orders.
	overdueEvery = time.Minute
	// overdueFirst is how soon after the start it looks, and how often it tries
	// while it is not healthy.
	overdueFirst = time.Second
	// overdueBatch is how many overdue orders are read at once.
	overdueBatch = 100
)

// watchOverdue cancels overdue orders until ctx ends. It does so only while the
// service is healthy: during an outage of NATS or the database orders are late
// without having lost their timers.
func (s *Service) watchOverdue(ctx context.Context) {
	for delay := overdueFirst; backoff.Wait(ctx, delay); {
		if s.Health() != nil {
			delay = overdueFirst
			continue
		}
		delay = overdueEvery
		n, err := s.cancelOverdue(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("overdue orders not looked for, will try again")
		}
		if n > 0 {
			s.log.Warn().Int("orders", n).Msg("orders without their timer were open after their deadline and are cancelled")
		}
	}
}

// cancelOverdue cancels the orders that are overdue and returns how many.
func (s *Service) cancelOverdue(ctx context.Context) (cancelled int, err error) {
	before := now().Add(-s.deadline - overdueAfter)
	for {
		late, err := s.table.openBefore(ctx, s.db.DB, before, overdueBatch)
		if err != nil {
			return cancelled, err
		}
		for _, o := range late {
			if err := s.expire(ctx, o); err != nil {
				return cancelled, err
			}
			cancelled++
		}
		if len(late) < overdueBatch {
			return cancelled, nil
		}
	}
}

// expire does what the event of the order's timer would have done. It does nothing
// if the order has changed since it was read.
func (s *Service) expire(ctx context.Context, late Order) error {
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
