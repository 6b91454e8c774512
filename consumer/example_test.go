package consumer_test

import (
	"context"
	"fmt"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// A service: one handler and a Run. The handler returns what follows from the
// event; the consumer makes it durable, once.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	b, end, err := bustest.StartBus(ctx, bus.Config{Source: "/shop"}) // in production: bus.Connect
	if err != nil {
		panic(err)
	}
	defer end() //nolint:errcheck // an example

	type order struct {
		Total int64 `json:"total"`
	}
	placed := event.Define[order]("order.placed.v1")
	captured := event.Define[order]("payment.captured.v1")

	registry := consumer.NewRegistry()
	consumer.Handle(registry, placed, func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		fmt.Println("charging", o.Total, "for", event.PartitionKey(e))
		return consumer.Emit(captured.New(event.PartitionKey(e), o)), nil
	})
	consumer.Handle(registry, captured, func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		fmt.Println("charged", o.Total, "because of", event.Extension(e, event.ExtCausation))
		stop() // an example ends; a service runs until it is told to stop
		return consumer.Step{}, nil
	})
	payment, err := consumer.New(b, registry, consumer.Config{Name: "payment"})
	if err != nil {
		panic(err)
	}

	draft := placed.New("ord-7f3a", order{Total: 2500})
	draft.ID = "evt-1"
	e, err := b.Seal(draft)
	if err != nil {
		panic(err)
	}
	for range 3 { // publishing again changes nothing
		if _, err := b.Publish(ctx, e); err != nil {
			panic(err)
		}
	}
	if err := payment.Run(ctx); err != nil {
		panic(err)
	}
	// Output:
	// charging 2500 for ord-7f3a
	// charged 2500 because of evt-1
}
