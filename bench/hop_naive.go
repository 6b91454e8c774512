package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/internal/hopbench"
)

// naiveWorkers is how many goroutines handle events at once.
const naiveWorkers = 64

// naive is exact, as one writes it first: for each event a claim, the outgoing
// event and the done mark, one round trip after another.
func naive(ctx context.Context, s *hopbench.Stage, n int) error {
	js, err := clientOf(s)
	if err != nil {
		return err
	}
	marks, err := js.KeyValue(ctx, s.Bus.Names().Bucket("dedup"))
	if err != nil {
		return err
	}
	durable, err := durableOf(ctx, s, js)
	if err != nil {
		return err
	}
	work := make(chan jetstream.Msg, naiveWorkers)
	ended := make(chan error, 1+naiveWorkers)
	var done atomic.Int64
	var workers sync.WaitGroup
	for range naiveWorkers {
		workers.Go(func() {
			for m := range work {
				if err := naiveStep(ctx, s, js, marks, m); err != nil {
					ended <- err
					return
				}
				if done.Add(1) == int64(n) {
					ended <- nil
				}
			}
		})
	}
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	consuming, err := durable.Consume(func(m jetstream.Msg) {
		select {
		case work <- m:
		case <-stopped.Done():
		}
	}, jetstream.PullMaxMessages(inFlight))
	if err == nil {
		err = firstOf(ctx, ended)
		stop()
		consuming.Stop()
		<-consuming.Closed()
	}
	close(work)
	workers.Wait()
	return err
}

func naiveStep(ctx context.Context, s *hopbench.Stage, js jetstream.JetStream, marks jetstream.KeyValue, m jetstream.Msg) error {
	key := hopbench.ConsumerName + "." + m.Headers().Get("Nats-Msg-Id")
	revision, err := marks.Create(ctx, key, []byte("claimed"))
	if err != nil {
		return fmt.Errorf("naive: claim: %w", err)
	}
	if _, err := js.PublishMsg(ctx, outgoing(s, m.Headers(), m.Data())); err != nil {
		return fmt.Errorf("naive: publish: %w", err)
	}
	if _, err := marks.Update(ctx, key, []byte("done"), revision); err != nil {
		return fmt.Errorf("naive: mark: %w", err)
	}
	return m.Ack()
}
