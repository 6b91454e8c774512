package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/internal/hopbench"
)

// inFlight is how many publishes the client library may have in flight, and
// how many deliveries it may have pulled: as many as Farandole's defaults allow.
const inFlight = 4096

// patience is how long a peer waits for an answer: a slow server is to be measured.
const patience = time.Minute

// clientOf returns the client library on a stage's connection.
func clientOf(s *hopbench.Stage) (jetstream.JetStream, error) {
	// Up to three messages of an event are on their way at once.
	return jetstream.New(s.Bus.Conn(), jetstream.WithPublishAsyncMaxPending(3*inFlight), jetstream.WithDefaultTimeout(patience))
}

// durableOf creates the durable that delivers a stage's waiting events.
func durableOf(ctx context.Context, s *hopbench.Stage, js jetstream.JetStream) (jetstream.Consumer, error) {
	return js.CreateConsumer(ctx, s.Bus.Names().EventsStream(), jetstream.ConsumerConfig{
		Durable: hopbench.ConsumerName, FilterSubject: s.Bus.Names().TypeFilter(hopbench.In.Type()),
		AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: inFlight,
	})
}

// outgoing is the event that follows from in, with the headers that Farandole
// gives it but nothing of the care: the id is in's with a prefix.
func outgoing(s *hopbench.Stage, in nats.Header, data []byte) *nats.Msg {
	key, id := in.Get("ce-partitionkey"), in.Get("ce-id")
	return &nats.Msg{
		Subject: s.Bus.Names().Root("events.") + string(hopbench.Out.Type()) + "." + key,
		Header: nats.Header{
			nats.MsgIdHdr:        {"out-" + in.Get(nats.MsgIdHdr)},
			"ce-specversion":     {"1.0"},
			"ce-id":              {"out-" + id},
			"ce-source":          {"/" + hopbench.ConsumerName},
			"ce-type":            {string(hopbench.Out.Type())},
			"ce-time":            {time.Now().UTC().Format(time.RFC3339Nano)},
			"ce-datacontenttype": {"application/json"},
			"ce-partitionkey":    {key},
			"ce-correlationid":   {in.Get("ce-correlationid")},
			"ce-causationid":     {id},
		},
		Data: data,
	}
}

// raw is the fastest loop one can write with the client library, and safe from
// nothing: a crash, an error or a redelivery emits again or never.
func raw(ctx context.Context, s *hopbench.Stage, n int) error {
	js, err := clientOf(s)
	if err != nil {
		return err
	}
	durable, err := durableOf(ctx, s, js)
	if err != nil {
		return err
	}
	stop, err := rawLoop(ctx, s, js, deliveriesOf(durable), n)
	if err != nil {
		return err
	}
	return stop(ctx)
}

// published is an event whose outgoing event is on its way.
type published struct {
	in  jetstream.Msg
	out jetstream.PubAckFuture
}

// feed starts to pass deliveries to a handler. What it returns ends that.
type feed func(handle func(jetstream.Msg)) (stop func(), err error)

// deliveriesOf is what a durable delivers.
func deliveriesOf(durable jetstream.Consumer) feed {
	return func(handle func(jetstream.Msg)) (func(), error) {
		consuming, err := durable.Consume(handle, jetstream.PullMaxMessages(inFlight))
		if err != nil {
			return nil, err
		}
		return func() {
			consuming.Stop()
			<-consuming.Closed()
		}, nil
	}
}

// rawLoop starts the loop. What it returns waits until n events are through (at
// most until ctx ends) and ends it; with n 0 it waits for none.
func rawLoop(ctx context.Context, s *hopbench.Stage, js jetstream.JetStream, from feed, n int) (func(context.Context) error, error) {
	ctx, end := context.WithCancel(ctx)
	ahead := make(chan published, inFlight)
	ended := make(chan error, 1)
	fail := func(err error) {
		select {
		case ended <- err:
		default:
		}
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		done := 0
		for {
			var p published
			select {
			case p = <-ahead:
			case <-ctx.Done():
				return
			}
			select {
			case <-p.out.Ok():
				if err := p.in.Ack(); err != nil {
					fail(err)
				}
			case err := <-p.out.Err():
				fail(err)
			case <-ctx.Done():
				return
			}
			if done++; done == n {
				fail(nil)
			}
		}
	}()
	stop, err := from(func(m jetstream.Msg) {
		future, err := js.PublishMsgAsync(outgoing(s, m.Headers(), m.Data()))
		if err != nil {
			fail(fmt.Errorf("raw: publish: %w", err))
			return
		}
		select {
		case ahead <- published{m, future}:
		case <-ctx.Done():
		}
	})
	if err != nil {
		end()
		return nil, err
	}
	return func(ctx context.Context) error {
		var err error
		if n > 0 {
			err = firstOf(ctx, ended)
		}
		stop()
		end()
		<-settled
		return err
	}, nil
}

// firstOf waits for the end of a run, or of ctx.
func firstOf(ctx context.Context, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
}
