package bus_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/natsserver"
	"github.com/farandole/farandole/topology"
)

// A service connects, provisions what it needs, and publishes. Publishing the
// same event again is recognised.
func ExampleConnect() {
	ctx := context.Background()
	server, err := natsserver.Start(natsserver.Config{NoListen: true})
	if err != nil {
		log.Fatal(err)
	}
	b, err := bus.Connect(ctx, bus.Config{Source: "/shop/orders", InProcess: server})
	if err != nil {
		log.Fatal(err)
	}
	plan, err := topology.Provision(ctx, b, topology.New(b.Names(), topology.Config{}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(plan)

	type placed struct {
		Total int64 `json:"total"`
	}
	e, err := b.Seal(event.Define[placed]("order.placed.v1").New("ord-7f3a", placed{Total: 2500}))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		receipt, err := b.Publish(ctx, e)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%+v\n", receipt)
	}
	if err := errors.Join(b.Close(), server.Stop()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// create  TIMERS
	// create  EVENTS
	// create  DLQ
	// create  KV_dedup
	// create  KV_state
	// create  KV_pauses
	// create  KV_members
	// {Stream:EVENTS Sequence:1 Duplicate:false}
	// {Stream:EVENTS Sequence:1 Duplicate:true}
}
