package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// A handler is tested without a server: what it returns is what it does.
func TestGrant(t *testing.T) {
	t.Parallel()
	registry := consumer.NewRegistry()
	consumer.Handle(registry, joined, grant)
	ada := bustest.Event(t, joined.New("ada", Customer{Name: "Ada"}))
	effects, err := bustest.Handle(t.Context(), registry, "coupons", ada)
	if err != nil {
		t.Fatal(err)
	}
	out := effects.Events
	if len(out) != 1 || out[0].Type() != "coupon.granted.v1" || string(out[0].Data()) != `{"text":"10 % off for Ada"}` {
		t.Fatalf("emitted %v", out)
	}
}

func TestServiceGrantsOneCouponForAnEventPublishedTwice(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, bus.Config{InProcess: bustest.Server(t), Names: b.Names(), Source: "/coupons"})
	}()
	e, err := b.Seal(joined.New("ada", Customer{Name: "Ada"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	m, err := b.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	m.Header.Del("Nats-Msg-Id") // so that the server stores the event again
	again, err := b.JetStream().PublishMsg(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, time.Minute, func() error {
		c, err := stream.Consumer(t.Context(), "coupons")
		if err != nil {
			return err
		}
		info := c.CachedInfo()
		if info.AckFloor.Stream < again.Sequence {
			return fmt.Errorf("%d of %d acknowledged", info.AckFloor.Stream, again.Sequence)
		}
		return nil
	})
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(b.Names().TypeFilter(granted.Type())))
	if err != nil {
		t.Fatal(err)
	}
	if len(info.State.Subjects) != 1 || info.State.Subjects[b.Names().Stored(b.Names().EventSubject(granted.Type(), "ada"), event.DefaultPartitions)] != 1 {
		t.Errorf("coupons: %v, want one for ada", info.State.Subjects)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
