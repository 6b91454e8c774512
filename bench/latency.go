package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// latencyFigure is how long one hop takes when nothing else happens: from
// publishing an event until the next consumer has the one that follows from it.
type latencyFigure struct {
	Name string    `json:"name"`
	Hops int       `json:"hops"` // of a repetition
	P50  []float64 `json:"p50_us"`
	P99  []float64 `json:"p99_us"`
}

const (
	idlePause  = 5 * time.Millisecond // between two hops: done marks and acknowledgements are through
	idleWarmup = 20
	idleLimit  = 10 * time.Second
)

// starter begins a loop that handles whatever comes, until stop.
type starter func(ctx context.Context, s *hopbench.Stage) (stop func() error, err error)

func (b *bench) latency(ctx context.Context) error {
	connect, err := b.single(ctx)
	if err != nil {
		return err
	}
	starters := []starter{startRaw, startFarandole(ledger.KV), startFarandole(ledger.Partition)}
	figures := []latencyFigure{{Name: nameRaw}, {Name: nameKV}, {Name: namePartition}}
	for rep := range b.reps {
		for i, start := range starters {
			samples, err := idleHops(ctx, connect, b.idle, start)
			if err != nil {
				return fmt.Errorf("%s: %w", figures[i].Name, err)
			}
			figures[i].Hops = b.idle
			figures[i].P50 = append(figures[i].P50, percentile(samples, 50))
			figures[i].P99 = append(figures[i].P99, percentile(samples, 99))
			b.say("latency %d/%d: %s: p50 %.0f µs, p99 %.0f µs", rep+1, b.reps, figures[i].Name, figures[i].P50[rep], figures[i].P99[rep])
		}
	}
	b.results.Latency = figures
	if err := b.title("idle hop latency, one replica, file: %d hops, one at a time, median of %d", b.idle, b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", ">p50 µs", ">p99 µs", ">p50 to raw")
	for _, f := range figures {
		table.Row(f.Name, terminal.Number(int(median(f.P50))), terminal.Number(int(median(f.P99))), ratio(median(f.P50), median(figures[0].P50)))
	}
	_, err = table.WriteTo(b.out)
	return err
}

func startRaw(ctx context.Context, s *hopbench.Stage) (func() error, error) {
	js, err := clientOf(s)
	if err != nil {
		return nil, err
	}
	durable, err := durableOf(ctx, s, js)
	if err != nil {
		return nil, err
	}
	stop, err := rawLoop(ctx, s, js, deliveriesOf(durable), 0)
	if err != nil {
		return nil, err
	}
	return func() error { return stop(ctx) }, nil
}

func startFarandole(kind ledger.Kind) starter {
	return func(ctx context.Context, s *hopbench.Stage) (func() error, error) {
		c, err := hopbench.NewConsumer(s.Bus, kind, hopbench.DefaultConcurrency, 0)
		if err != nil {
			return nil, err
		}
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()
		return func() error {
			cancel()
			return <-ended
		}, nil
	}
}

// idleHops times n hops, one at a time, and verifies them.
func idleHops(ctx context.Context, connect bus.Config, n int, start starter) (samples []time.Duration, err error) {
	s, err := hopbench.Open(ctx, connect, hopbench.Prefix(), 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	stop, err := start(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	seen, forget, err := nextConsumer(ctx, s)
	if err != nil {
		return nil, err
	}
	defer forget()

	pause := time.NewTicker(idlePause)
	defer pause.Stop()
	for i := range idleWarmup + n {
		<-pause.C
		begun := time.Now()
		if err := s.Publish(ctx, i, 1); err != nil {
			return nil, err
		}
		select {
		case at := <-seen:
			samples = append(samples, at.Sub(begun))
		case <-time.After(idleLimit):
			return nil, fmt.Errorf("hop %d: nothing came within %v", i, idleLimit)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return samples[idleWarmup:], s.Verify(ctx, idleWarmup+n)
}

// nextConsumer tells when the next consumer gets the outgoing events that are stored
// from now on.
func nextConsumer(ctx context.Context, s *hopbench.Stage) (<-chan time.Time, func(), error) {
	js := s.Bus.JetStream()
	next, err := js.CreateConsumer(ctx, s.Bus.Names().EventsStream(), jetstream.ConsumerConfig{
		FilterSubject: s.Bus.Names().TypeFilter(hopbench.Out.Type()), AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverNewPolicy, MemoryStorage: true,
	})
	if err != nil {
		return nil, nil, err
	}
	seen := make(chan time.Time, 1)
	consuming, err := next.Consume(func(jetstream.Msg) {
		select {
		case seen <- time.Now():
		case <-ctx.Done():
		}
	})
	if err != nil {
		return nil, nil, err
	}
	return seen, consuming.Stop, nil
}
