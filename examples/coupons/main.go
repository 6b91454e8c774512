// Command coupons is a first service: it grants a coupon to each customer who
// joins. It stands alone: it needs a NATS server and no other service. It connects
// to NATS_URL. README.md explains it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// Customer is the data of customer.joined.v1.
type Customer struct {
	Name string `json:"name"`
}

// Coupon is the data of coupon.granted.v1.
type Coupon struct {
	Text string `json:"text"`
}

var (
	joined  = event.Define[Customer]("customer.joined.v1")
	granted = event.Define[Coupon]("coupon.granted.v1")
)

// grant handles customer.joined.v1. It returns the event that follows from it.
func grant(_ context.Context, e event.Event, c Customer) (consumer.Step, error) {
	coupon := Coupon{Text: "10 % off for " + c.Name}
	return consumer.Emit(granted.New(event.PartitionKey(e), coupon)), nil
}

// run connects and handles events until ctx ends.
func run(ctx context.Context, cfg bus.Config) (err error) {
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	registry := consumer.NewRegistry()
	consumer.Handle(registry, joined, grant)
	c, err := consumer.New(b, registry, consumer.Config{Name: "coupons"})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	logger := bus.SlogLogger(slog.Default().Handler())
	err := run(ctx, bus.Config{URL: os.Getenv("NATS_URL"), Source: "/coupons", Logger: logger})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "coupons:", err)
		os.Exit(1)
	}
}
