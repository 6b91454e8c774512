package fleet_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/resilience/fleet"
)

// order is what a customer has ordered.
type order struct{}

func charge(context.Context, order) error { return errors.New("gateway is down") }

// serve runs a consumer whose processes share a breaker. docs/resilience.md has its middle.
func serve(ctx context.Context, b *bus.Bus, breaker *resilience.Breaker, guard *resilience.Guard) error {
	placed := event.Define[order]("order.placed.v1")
	r := consumer.NewRegistry()
	shared, err := fleet.New(b, fleet.Config{Consumer: "payment", Breaker: breaker})
	if err != nil {
		return err
	}
	consumer.Handle(r, placed, func(ctx context.Context, _ event.Event, o order) (consumer.Step, error) {
		if err := guard.Do(ctx, func(ctx context.Context) error { return charge(ctx, o) }); err != nil {
			return consumer.Step{}, shared.Excuse(err) // while the breaker is not closed this was no attempt
		}
		return consumer.Step{}, nil
	})
	c, err := consumer.New(b, r, consumer.Config{Name: "payment", Source: "/payment"})
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { shared.Run(ctx, c) })
	return c.Run(ctx)
}

func TestServeOfTheDocumentation(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	breaker, err := resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway", Failures: 1})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := resilience.New(resilience.Config{Name: "gateway", Breaker: breaker})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, b, breaker, guard) }()
	e, err := b.Seal(event.Define[order]("order.placed.v1").New("o-1", order{}))
	if err == nil {
		_, err = b.Publish(ctx, e)
	}
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() bool { return breaker.State() == resilience.Open })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
