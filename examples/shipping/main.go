// Command shipping is a service that joins the dance: it reacts to confirmed
// orders. It connects to NATS_URL, like every Farandole service.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Parcel is the data of parcel.shipped.v1.
type Parcel struct {
	OrderID string `json:"order_id"`
}

var shipped = event.Define[Parcel]("parcel.shipped.v1")

// ship reacts to one confirmed order.
func ship(_ context.Context, _ event.Event, order events.Confirmed) (consumer.Step, error) {
	return consumer.Emit(shipped.New(event.Key(order.OrderID), Parcel{OrderID: order.OrderID})), nil
}

func run(ctx context.Context, cfg bus.Config) (err error) {
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	registry := consumer.NewRegistry()
	consumer.Handle(registry, events.OrderConfirmed, ship)
	c, err := consumer.New(b, registry, consumer.Config{Name: "shipping"})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, bus.Config{URL: os.Getenv("NATS_URL"), Source: "/shipping"})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shipping:", err)
		os.Exit(1)
	}
}
