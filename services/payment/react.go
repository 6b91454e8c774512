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
			return r, nil, err
		}
		next, drafts := onCharge(r, p, c)
		return next, drafts, nil
	})
}

// compensate gives an order its money back, if it was charged or may be;
// reason is why the order is being undone.
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
			return r, nil, err
		}
		next, drafts := onVoid(r, v, reason)
		return next, drafts, nil
	})
}

// react decides on an order's record and writes it together with what the
// event leads to. A rerun for the same event returns the same. A record that
// somebody else wrote meanwhile is decided again: the gateway gives the same
// answer again, and a decision that leaves the status alone writes nothing.
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
		if drafts, again := r.Steps.Of(cause); again {
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
		next.Steps = next.Steps.With(cause, drafts)
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
