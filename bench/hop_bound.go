package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
)

// The bounds: what each ledger writes, written by hand in the fastest way there
// is, and nothing else. No event is decoded, retried, kept in order, renewed or
// dead-lettered, and an error ends the run. What a ledger takes more than its
// bound is what its guarantees cost the client.

// byHand hands deliveries to step, one after another, until n are acknowledged.
// step calls done when the event's writes are stored.
func byHand(ctx context.Context, s *hopbench.Stage, n int, start func(ctx context.Context, js jetstream.JetStream, done func(jetstream.Msg, error)) func(jetstream.Msg)) error {
	js, err := clientOf(s)
	if err != nil {
		return err
	}
	durable, err := durableOf(ctx, s, js)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	end := func(err error) {
		select {
		case ended <- err:
		default:
		}
	}
	acked := 0
	running, stop := context.WithCancel(ctx)
	defer stop()
	step := start(running, js, func(m jetstream.Msg, err error) {
		if err == nil {
			err = m.Ack()
		}
		if acked++; err != nil || acked == n {
			end(err)
		}
	})
	consuming, err := durable.Consume(step, jetstream.PullMaxMessages(inFlight))
	if err != nil {
		return err
	}
	err = firstOf(ctx, ended)
	stop()
	consuming.Stop()
	<-consuming.Closed()
	return err
}

// marked is an event on its way through a bucket of marks.
type marked struct {
	in              jetstream.Msg
	claim, out, end jetstream.PubAckFuture
}

// kvByHand writes what the KV ledger writes: a claim, then the outgoing event
// and the done mark. All are on their way at once, over many events.
func kvByHand(ctx context.Context, s *hopbench.Stage, n int) error {
	subject := s.Bus.PutSubject(s.Bus.Names().Bucket("dedup"), "")
	return byHand(ctx, s, n, func(ctx context.Context, js jetstream.JetStream, done func(jetstream.Msg, error)) func(jetstream.Msg) {
		mark := func(m jetstream.Msg, state string, after uint64) *nats.Msg {
			return &nats.Msg{
				Subject: subject + hopbench.ConsumerName + "." + m.Headers().Get(nats.MsgIdHdr),
				Header:  nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(after, 10)}, jetstream.MsgTTLHeader: {"24h"}},
				Data:    []byte(state),
			}
		}
		claimed, ended := make(chan marked, inFlight), make(chan marked, inFlight)
		go relay(ctx, claimed, func(x marked) {
			ack, err := answer(ctx, x.claim)
			if err == nil {
				x.out, err = js.PublishMsgAsync(outgoing(s, x.in.Headers(), x.in.Data()))
			}
			if err == nil {
				x.end, err = js.PublishMsgAsync(mark(x.in, "done", ack))
			}
			if err != nil {
				done(x.in, err)
				return
			}
			ended <- x
		})
		go relay(ctx, ended, func(x marked) {
			_, err := answer(ctx, x.out)
			if err == nil {
				_, err = answer(ctx, x.end)
			}
			done(x.in, err)
		})
		return func(m jetstream.Msg) {
			claim, err := js.PublishMsgAsync(mark(m, "claimed", 0))
			if err != nil {
				done(m, err)
				return
			}
			claimed <- marked{in: m, claim: claim}
		}
	})
}

// inBatches commits what has come, one batch at a time, each with room for a page.
func inBatches(ctx context.Context, s *hopbench.Stage, n int, commit func(batch []jetstream.Msg) error) error {
	return byHand(ctx, s, n, func(ctx context.Context, _ jetstream.JetStream, done func(jetstream.Msg, error)) func(jetstream.Msg) {
		waiting := make(chan jetstream.Msg, inFlight)
		go relay(ctx, waiting, func(first jetstream.Msg) {
			batch := []jetstream.Msg{first}
			for len(batch) < bus.MaxBatch-1 && len(waiting) > 0 {
				batch = append(batch, <-waiting)
			}
			err := commit(batch)
			for _, m := range batch {
				done(m, err)
			}
		})
		return func(m jetstream.Msg) {
			select {
			case waiting <- m:
			case <-ctx.Done():
			}
		}
	})
}

// pagesByHand writes what the partition ledger writes: batches of outgoing events with
// a page of their keys at the end, one batch at a time.
func pagesByHand(ctx context.Context, s *hopbench.Stage, n int) error {
	last := uint64(0)
	return inBatches(ctx, s, n, func(batch []jetstream.Msg) error {
		msgs := make([]*nats.Msg, 0, len(batch)+1)
		page := &nats.Msg{
			Subject: s.Bus.Names().Root("ledger." + hopbench.ConsumerName + ".0.page"),
			Header:  nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(last, 10)}},
		}
		for _, m := range batch {
			msgs = append(msgs, outgoing(s, m.Headers(), m.Data()))
			key, err := event.EventKey(m.Headers().Get(nats.MsgIdHdr)).Binary()
			if err != nil {
				return fmt.Errorf("pages by hand: %w", err)
			}
			page.Data = append(page.Data, key[:]...)
		}
		pending, err := s.Bus.SendBatch(ctx, append(msgs, page))
		if err == nil {
			var receipt bus.Receipt
			receipt, err = pending.Wait(ctx)
			last = receipt.Sequence
		}
		if err != nil {
			return fmt.Errorf("pages by hand: %w", err)
		}
		return nil
	})
}

// relay hands on what comes, until ctx ends.
func relay[T any](ctx context.Context, from <-chan T, to func(T)) {
	for {
		select {
		case x := <-from:
			to(x)
		case <-ctx.Done():
			return
		}
	}
}

// answer waits for a publish and returns its sequence.
func answer(ctx context.Context, f jetstream.PubAckFuture) (uint64, error) {
	select {
	case ack := <-f.Ok():
		return ack.Sequence, nil
	case err := <-f.Err():
		return 0, fmt.Errorf("by hand: %w", err)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
