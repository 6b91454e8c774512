package payment

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// placed charges a new order.
func (s *Service) placed(ctx context.Context, e event.Event, p events.Placed) (consumer.Step, error) {
	if err := p.Validate(); err != nil {
		return consumer.Step{}, consumer.Permanent(err)
	}
	if strings.HasPrefix(p.CustomerID, "poison-") && s.poison.Load() {
		panic("payment: poison is on")
	}
	return s.react(ctx, e, p.OrderID, func(ctx context.Context, r Record) (Record, []event.Draft, error) {
		if !wantsCharge(r) {
			return r, nil, nil
		}
		c, err := s.gateway.charge(ctx, p)
		if err != nil {
			return r, nil, s.fleet.Excuse(err)
		}
		next, drafts := onCharge(r, p, c)
		return next, drafts, nil
	})
}

// compensate refunds an order, also one whose charge may still be under way.
// reason says why the order is cancelled.
func (s *Service) compensate(ctx context.Context, e event.Event, orderID, reason string) (consumer.Step, error) {
	if orderID == "" {
		return consumer.Step{}, consumer.Permanent(fmt.Errorf("%w: order_id is missing", events.ErrInvalid))
	}
	return s.react(ctx, e, orderID, func(ctx context.Context, r Record) (Record, []event.Draft, error) {
		if !wantsVoid(r) {
			return r, nil, nil
		}
		v, err := s.gateway.void(ctx, orderID)
		if err != nil {
			return r, nil, s.fleet.Excuse(err)
		}
		next, drafts := onVoid(r, v, reason)
		return next, drafts, nil
	})
}

// react reads the order's record, calls decide and writes the record that decide
// returns, together with the events that the service emits in answer to cause. If
// cause was answered before, it returns the same events and decides nothing. If
// another process has changed the record meanwhile, it decides again: the gateway
// answers a repeated call as it did the first time. A record whose status stays as
// it is is not written.
func (s *Service) react(
	ctx context.Context, cause event.Event, orderID string,
	decide func(ctx context.Context, r Record) (next Record, drafts []event.Draft, err error),
) (consumer.Step, error) {
	st, err := s.opened()
	if err != nil {
		return consumer.Step{}, err
	}
	for {
		r, revision, err := st.Get(ctx, event.Key(orderID))
		if err != nil {
			return consumer.Step{}, fmt.Errorf("payment: %w", err)
		}
		if drafts, again := r.Emitted.For(cause); again {
			return consumer.Emit(drafts...), nil
		}
		r.OrderID = orderID
		next, drafts, err := decide(ctx, r)
		if err != nil {
			return consumer.Step{}, err
		}
		if next.Status == r.Status {
			return consumer.Step{}, nil
		}
		next.Emitted = next.Emitted.With(cause, drafts)
		_, err = st.Put(ctx, event.Key(orderID), next, revision)
		if errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return consumer.Step{}, fmt.Errorf("payment: %w", err)
		}
		return consumer.Emit(drafts...), nil
	}
}
