package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/internal/hopbench"
)

// watermillSubscribers is where more subscribers are no faster any more.
const watermillSubscribers = 64

// watermillHop is Watermill's router on watermill-nats, without deduplication:
// it acknowledges after publishing, and emits again when anything fails between.
func watermillHop(ctx context.Context, s *hopbench.Stage, n int) error {
	names := s.Bus.Names()
	logger := watermill.NopLogger{}
	settings := wmnats.JetStreamConfig{
		TrackMsgId: true, AckAsync: true, DurablePrefix: hopbench.ConsumerName,
		ConnectOptions:   []nats.JSOpt{nats.MaxWait(patience)},
		SubscribeOptions: []nats.SubOpt{nats.BindStream(names.EventsStream()), nats.DeliverAll(), nats.AckExplicit(), nats.MaxAckPending(inFlight)},
	}
	url := s.Bus.Conn().ConnectedUrl()
	publisher, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url, JetStream: settings}, logger)
	if err != nil {
		return fmt.Errorf("watermill: publisher: %w", err)
	}
	subscriber, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL: url, SubscribersCount: watermillSubscribers, QueueGroupPrefix: hopbench.ConsumerName, CloseTimeout: time.Second, JetStream: settings,
	}, logger)
	if err != nil {
		return errors.Join(fmt.Errorf("watermill: subscriber: %w", err), publisher.Close())
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, logger)
	if err != nil {
		return errors.Join(fmt.Errorf("watermill: router: %w", err), subscriber.Close(), publisher.Close())
	}
	ended := make(chan error, 1)
	var done atomic.Int64
	router.AddConsumerHandler("hop", names.TypeFilter(hopbench.In.Type()), subscriber, func(m *message.Message) error {
		subject, out := watermillOut(s, m)
		if err := publisher.Publish(subject, out); err != nil {
			return err
		}
		if done.Add(1) == int64(n) {
			ended <- nil
		}
		return nil
	})
	running, stop := context.WithCancel(ctx)
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(running) }()
	err = firstOf(ctx, ended)
	return errors.Join(err, router.Close(), <-stopped, publisher.Close())
}

// watermillOut is [outgoing] as a Watermill message: metadata become headers.
func watermillOut(s *hopbench.Stage, in *message.Message) (subject string, out *message.Message) {
	header := nats.Header{nats.MsgIdHdr: {in.Metadata.Get("ce-id")}} // the server's own header is kept from us
	for name, value := range in.Metadata {
		header[name] = []string{value}
	}
	m := outgoing(s, header, in.Payload)
	out = message.NewMessage(m.Header.Get(nats.MsgIdHdr), m.Data)
	for name := range m.Header {
		if name != nats.MsgIdHdr { // TrackMsgId sets it
			out.Metadata.Set(name, m.Header.Get(name))
		}
	}
	return m.Subject, out
}
