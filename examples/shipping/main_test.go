package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/services/events"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// A handler is tested without a server: what it returns is what it does.
func TestShip(t *testing.T) {
	t.Parallel()
	registry := consumer.NewRegistry()
	consumer.Handle(registry, events.OrderConfirmed, ship)
	order := bustest.Event(t, events.OrderConfirmed.New("ord-1", events.Confirmed{OrderID: "ord-1"}))
	out, err := bustest.Handle(t.Context(), registry, "shipping", order)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 1 || out[0].Type() != "parcel.shipped.v1" || string(out[0].Data()) != `{"order_id":"ord-1"}` {
		t.Fatalf("emitted %v", out)
	}
}

func TestServiceShipsAConfirmedOrderOnce(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, bus.Config{InProcess: bustest.Server(t), Names: b.Names(), Source: "/shipping"})
	}()
	e, err := b.Seal(events.OrderConfirmed.New("ord-1", events.Confirmed{OrderID: "ord-1"}))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	filter := b.Names().TypeFilter(shipped.Type())
	bustest.Eventually(t, 10*time.Second, func() bool {
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(filter))
		return err == nil && len(info.State.Subjects) == 1
	})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
