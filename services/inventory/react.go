package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/state"
)

// latePayment is the least delay before the next attempt at an order.confirmed.v1 whose
// payment.captured.v1 has not come.
const latePayment = time.Second

// captured handles payment.captured.v1.
func (s *Service) captured(ctx context.Context, _ event.Event, p events.Captured) (consumer.Step, error) {
	if err := p.Validate(); err != nil {
		return consumer.Step{}, consumer.Permanent(err)
	}
	return s.react(ctx, p.OrderID, p.Items, func(o Order, stock []Stock) (verdict, error) {
		return onCaptured(o, p.Items, stock), nil
	})
}

// confirmed handles order.confirmed.v1.
func (s *Service) confirmed(ctx context.Context, _ event.Event, p events.Confirmed) (consumer.Step, error) {
	return s.react(ctx, p.OrderID, nil, onConfirmed)
}

// cancelRequested handles order.cancel_requested.v1.
func (s *Service) cancelRequested(ctx context.Context, _ event.Event, p events.CancelRequested) (consumer.Step, error) {
	return s.react(ctx, p.OrderID, nil, onCancel)
}

// react reads the order's document and those of its SKUs, calls decide with them, and
// returns the step that stores the decision. items are the event's; if it has none
// they are those of the order's document.
//
// What react reads can be out of date, or be part of a step that is never committed.
// The consumer then runs the handler again, also if the decision changes nothing.
func (s *Service) react(
	ctx context.Context, id string, items []events.Item, decide func(o Order, stock []Stock) (verdict, error),
) (consumer.Step, error) {
	if id == "" {
		return consumer.Step{}, consumer.Permanent(fmt.Errorf("%w: order_id is missing", events.ErrInvalid))
	}
	order, err := s.store.orders.Get(ctx, orderKey(id))
	if err != nil {
		return consumer.Step{}, err
	}
	if !order.Exists && items == nil { // the order is unknown, or its document is lost with the stream
		if err := s.store.check(ctx); err != nil {
			return consumer.Step{}, err
		}
	}
	order.Value.ID = id
	if items == nil {
		items = order.Value.Items
	}
	// The stock is read last, because other orders change it all the time: the later it
	// is read, the less often this step is stale.
	skus := make([]state.Document[Stock], len(items))
	stock := make([]Stock, len(items))
	for i, item := range items {
		if skus[i], err = s.store.skus.Get(ctx, skuKey(item.SKU)); err != nil {
			return consumer.Step{}, lost(err)
		}
		stock[i] = skus[i].Value
	}
	v, err := decide(order.Value, stock)
	switch {
	case errors.Is(err, ErrNotHeld):
		return consumer.Step{}, consumer.Permanent(err)
	case errors.Is(err, ErrNotReserved): // payment.captured.v1 may be behind this event
		return consumer.Step{}, consumer.Yield(err, latePayment)
	case err != nil || v.order.Status == "":
		return consumer.Step{}, err
	}
	step := consumer.Emit(v.emits...)
	step.State = append(step.State, order.Put(v.order))
	for i, x := range v.stock {
		step.State = append(step.State, skus[i].Put(x))
	}
	return step, nil
}
