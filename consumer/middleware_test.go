package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestMiddlewareIsAroundHandlers(t *testing.T) {
	t.Parallel()
	var calls []string
	around := func(name string) consumer.Middleware {
		return func(next consumer.EventHandler) consumer.EventHandler {
			return func(ctx context.Context, e event.Event) (consumer.Step, error) {
				calls = append(calls, name)
				step, err := next(ctx, e)
				step.Events = append(step.Events, draft(name))
				return step, err
			}
		}
	}
	r := consumer.NewRegistry()
	r.Use(around("outer"), around("inner"))
	consumer.Handle(r, placed, func(ctx context.Context, _ event.Event, _ orderData) (consumer.Step, error) {
		if _, ok := consumer.DeliveryOf(ctx); ok || consumer.OnEnd(ctx, func(consumer.End) {}) {
			t.Error("a context without a delivery has one")
		}
		calls = append(calls, "handler")
		return consumer.Step{}, nil
	})
	effects, err := bustest.Handle(t.Context(), r, "payment", sealOrder(t))
	if err != nil || !slices.Equal(calls, []string{"outer", "inner", "handler"}) || len(effects.Events) != 2 {
		t.Errorf("called are %v, and %d events follow: %v", calls, len(effects.Events), err)
	}
	r.Use(around("late"))
	if _, err := consumer.New(bustest.NewBus(t), r, config()); !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), "Use after a handler") {
		t.Errorf("New with a late Use: %v", err)
	}
}

func sealOrder(t *testing.T) event.Event {
	t.Helper()
	e, err := draft("1").Seal(event.Identity{ID: "1", Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestMiddlewareIsToldWhatBecomesOfEachRun(t *testing.T) {
	t.Parallel()
	type run struct {
		consumer.Delivery
		consumer.End
	}
	s := newSystem(t)
	var mu sync.Mutex
	var runs []run
	r := consumer.NewRegistry()
	r.Use(func(next consumer.EventHandler) consumer.EventHandler {
		return func(ctx context.Context, e event.Event) (consumer.Step, error) {
			d, ok := consumer.DeliveryOf(ctx)
			known := consumer.OnEnd(ctx, func(end consumer.End) {
				mu.Lock()
				defer mu.Unlock()
				runs = append(runs, run{d, end})
			})
			if !ok || !known {
				t.Error("a handler's context has no delivery")
			}
			return next(ctx, e)
		}
	})
	consumer.Handle(r, placed, func(_ context.Context, _ event.Event, o orderData) (consumer.Step, error) {
		if o.Amount == 13 {
			return consumer.Step{}, errFlaky
		}
		return consumer.Step{}, nil
	})
	s.start(config(), r, nil)
	outcomes := func() (all []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range runs {
			all = append(all, r.Outcome)
		}
		return all
	}
	s.publish(placed.New("ord-1", orderData{Amount: 13}))
	bustest.Eventually(t, soon, func() bool { return len(outcomes()) == 3 })
	if got := outcomes(); !slices.Equal(got, []string{"retried", "retried", "parked"}) {
		t.Errorf("outcomes are %v", got)
	}
	for i, r := range runs {
		if r.Attempt != i+1 || r.Replay != 0 || r.Consumer != "payment" || r.Stream != s.bus.Names().EventsStream() || r.Sequence == 0 {
			t.Errorf("run %d is %+v", i, r)
		}
		if (r.Reason == event.ReasonExhausted) != (i == 2) || (r.Again > 0) == (i == 2) {
			t.Errorf("run %d ended with %+v", i, r.End)
		}
	}
	s.publish(placed.New("ord-2", orderData{}))
	bustest.Eventually(t, soon, func() bool { return len(outcomes()) == 4 })
	if got := outcomes(); got[3] != "handled" {
		t.Errorf("outcomes are %v", got)
	}
}
