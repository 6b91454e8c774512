package inventory

import (
	"context"
	"errors"
	"fmt"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/state"
)

// captured holds the items of a paid order, or none of them.
func (s *Service) captured(ctx context.Context, _ event.Event, p events.Captured) (consumer.Step, error) {
	if err := p.Validate(); err != nil {
		return consumer.Step{}, consumer.Permanent(err)
	}
	return s.react(ctx, p.OrderID, p.Items, func(o Order, stock []Stock) (verdict, error) {
		return onCaptured(o, p.Items, stock), nil
	})
}

// confirmed lets the items of a confirmed order leave the stock.
func (s *Service) confirmed(ctx context.Context, _ event.Event, p events.Confirmed) (consumer.Step, error) {
	return s.react(ctx, p.OrderID, nil, onConfirmed)
}

// cancelRequested gives back what is held for an order.
func (s *Service) cancelRequested(ctx context.Context, _ event.Event, p events.CancelRequested) (consumer.Step, error) {
	return s.react(ctx, p.OrderID, nil, onCancel)
}

// react reads an order's document and those of its items, which are those given
// or else the document's own, and returns what the verdict makes of them.
//
// What is read may lag behind, or be of a step that is never committed. The
// consumer sees to it that no verdict rests on that, whether it changes the
// documents or not. A rejection is of the stock as it was then: what is given
// back later comes too late for it.
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
	if !order.Exists && items == nil { // never heard of, or all is lost
		if err := s.store.check(ctx); err != nil {
			return consumer.Step{}, err
		}
	}
	order.Value.ID = id
	if items == nil {
		items = order.Value.Items
	}
	// The stock comes last: it is what all orders want, so it must not get old.
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
