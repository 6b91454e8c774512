package order

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// place writes a new order and its event in one transaction. If the same request has
// done so before, its order stays as it is. If there is no room for a new order
// the error matches errFull, and nothing is written.
func (s *Service) place(ctx context.Context, o Order) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := s.room.enter(ctx); err != nil {
		return err
	}
	o.Created, o.Instance = now(), rand.Text()
	o.Updated = o.Created
	return s.inTx(ctx, func(tx *sql.Tx) error {
		isNew, err := s.table.insert(ctx, tx, o)
		if err != nil || !isNew {
			return err
		}
		return s.tell(ctx, tx, o.eventID("placed"), events.OrderPlaced.New(o.key(), events.Placed{
			OrderID: o.ID, CustomerID: o.CustomerID, Items: o.Items, Total: o.money(),
		}))
	})
}

// cancel marks the order as being cancelled and writes the event that asks for it,
// in one transaction. Its errors are those of onCancel.
func (s *Service) cancel(ctx context.Context, id string) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		o, err := s.table.lock(ctx, tx, id)
		if err != nil {
			return err
		}
		next, err := onCancel(o)
		if err != nil || next.Status == o.Status {
			return err
		}
		next.Updated = now()
		if err := s.table.update(ctx, tx, next); err != nil {
			return err
		}
		return s.tell(ctx, tx, o.eventID("cancel_requested"), events.OrderCancelRequested.New(o.key(), events.CancelRequested{
			OrderID: o.ID, Reason: next.Reason,
		}))
	})
}

// tell adds an event to the outbox.
func (s *Service) tell(ctx context.Context, tx *sql.Tx, id string, d event.Draft) error {
	d.ID = id
	e, err := s.outbox.Seal(d)
	if err == nil {
		err = s.outbox.Add(ctx, tx, e)
	}
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	return nil
}

// inTx runs f in a transaction and commits it, unless f fails. If the commit fails
// it is not known whether the transaction is committed.
func (s *Service) inTx(ctx context.Context, f func(tx *sql.Tx) error) error {
	if err := s.open(); err != nil {
		return err
	}
	tx, err := s.db.DB.BeginTx(ctx, nil)
	if err != nil {
		return failed("begin", err)
	}
	if err := f(tx); err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	if err := tx.Commit(); err != nil {
		return failed("commit", err)
	}
	s.outbox.Wake()
	return nil
}

// ignoreDone drops the error of a rollback after the transaction has ended with
// its context.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}
