package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// lateRecord is how long an event about an unknown order waits at least for the
// next attempt, whatever its backoff draws: a row may be four seconds late by
// default.
const lateRecord = time.Second

// deadlineTimer is the name of an order's timer.
const deadlineTimer = "deadline"

// reaction makes a handler of a decision. The new state, what follows from the
// event and the mark that it was handled are committed together, by the ledger;
// what the handler has written is rolled back if it fails.
func reaction[T any](s *Service, decide func(o Order, p T) (Order, []event.Draft, error), orderID func(p T) string) consumer.Handler[T] {
	return func(ctx context.Context, e event.Event, p T) (consumer.Step, error) {
		id := orderID(p)
		if id == "" {
			return consumer.Step{}, consumer.Permanent(fmt.Errorf("%w: order_id is missing", events.ErrInvalid))
		}
		tx, err := s.inbox.Begin(ctx, Name, e)
		if err != nil {
			return consumer.Step{}, err
		}
		o, err := s.table.lock(ctx, tx, id)
		if err != nil {
			return consumer.Step{}, err
		}
		next, drafts, err := decide(o, p)
		switch {
		case errors.Is(err, ErrUnknownOrder):
			return consumer.Step{}, consumer.RetryAfter(err, lateRecord)
		case err != nil:
			return consumer.Step{}, err
		case next.Status == o.Status:
			return consumer.Step{}, consumer.Skip
		}
		next.Updated = now()
		if err := s.table.update(ctx, tx, next); err != nil {
			return consumer.Step{}, err
		}
		return stepOf(event.Key(id), drafts), nil
	}
}

// stepOf is the step in which drafts follow. What ends the order ends the wait
// for it, too.
func stepOf(id event.Key, drafts []event.Draft) consumer.Step {
	step := consumer.Emit(drafts...)
	for _, d := range drafts {
		if d.Type == events.OrderConfirmed.Type() || d.Type == events.OrderCancelled.Type() {
			step.Cancel = []consumer.TimerID{{Name: deadlineTimer, Key: id}}
		}
	}
	return step
}

// placed sets the deadline of an order that this service has announced. What
// else calls itself a new order is not waited for. The order is locked, so that
// its timer is set before its end cancels it, or not at all.
func (s *Service) placed(ctx context.Context, e event.Event, p events.Placed) (consumer.Step, error) {
	if e.Source() != source {
		return consumer.Step{}, consumer.Skip
	}
	tx, err := s.inbox.Begin(ctx, Name, e)
	if err != nil {
		return consumer.Step{}, err
	}
	o, err := s.table.lock(ctx, tx, p.OrderID)
	switch {
	case err != nil:
		return consumer.Step{}, err
	case o.Status == "":
		return consumer.Step{}, consumer.RetryAfter(unknown("order placed", p.OrderID), lateRecord)
	case e.ID() != o.eventID("placed"), o.Status != Placed && o.Status != Paid:
		return consumer.Step{}, consumer.Skip
	}
	return consumer.Step{Timers: []consumer.Timer{{
		Name: deadlineTimer, After: s.deadline,
		Event: events.OrderDeadline.New(o.key(), events.Deadline{OrderID: o.ID, Instance: o.Instance}),
	}}}, nil
}
