package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/events"
)

// lateRecord is the least delay before the next attempt at an event whose order has
// no row yet. With the default of five attempts the row may be four seconds late. Other
// events of the order do not wait meanwhile.
const lateRecord = time.Second

// deadlineTimer is the name of the timer of an order's deadline.
const deadlineTimer = "deadline"

// reaction makes a handler of a decision. The new state, what follows from the
// event and the mark that it was handled are committed together, by the ledger;
// what the handler has written is rolled back if it fails.
func reaction[T any](s *Service, decide func(o Order, p T) (Order, []event.Draft, error), orderID func(p T) string) consumer.Handler[T] {
	return func(ctx context.Context, _ event.Event, p T) (consumer.Step, error) {
		id := orderID(p)
		if id == "" {
			return consumer.Step{}, consumer.Permanent(fmt.Errorf("%w: order_id is missing", events.ErrInvalid))
		}
		tx, err := outbox.Tx(ctx)
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
			return consumer.Step{}, consumer.Yield(err, lateRecord)
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

// stepOf is the step that emits drafts. If one of them says that the order is final,
// the step also cancels the order's timer.
func stepOf(id event.Key, drafts []event.Draft) consumer.Step {
	step := consumer.Emit(drafts...)
	for _, d := range drafts {
		if d.Type == events.OrderConfirmed.Type() || d.Type == events.OrderCancelled.Type() {
			step.Cancel = []consumer.TimerID{{Name: deadlineTimer, Key: id}}
		}
	}
	return step
}

// placed sets the timer of a new order's deadline. It skips an order.placed.v1 that
// this service did not emit. It locks the order, so that the step that makes the
// order final comes either before, and then no timer is set, or after, and then it
// cancels the timer.
func (s *Service) placed(ctx context.Context, e event.Event, p events.Placed) (consumer.Step, error) {
	if e.Source() != source {
		return consumer.Step{}, consumer.Skip
	}
	tx, err := outbox.Tx(ctx)
	if err != nil {
		return consumer.Step{}, err
	}
	o, err := s.table.lock(ctx, tx, p.OrderID)
	switch {
	case err != nil:
		return consumer.Step{}, err
	case o.Status == "":
		return consumer.Step{}, consumer.Yield(unknown("order placed", p.OrderID), lateRecord)
	case e.ID() != o.eventID("placed"), o.Status != Placed && o.Status != Paid:
		return consumer.Step{}, consumer.Skip
	}
	return consumer.Step{Timers: []consumer.Timer{{
		Name: deadlineTimer, After: s.deadline,
		Event: events.OrderDeadline.New(o.key(), events.Deadline{OrderID: o.ID, Instance: o.Instance}),
	}}}, nil
}
