package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// scaleFigure is how fast some processes are together.
type scaleFigure struct {
	Ledger    string        `json:"ledger"`
	Wait      time.Duration `json:"wait_ns"` // of each handler
	Handlers  int           `json:"handlers"`
	Processes int           `json:"processes"`
	PerSecond float64       `json:"hops_per_second"`
}

// fewHandlers waiting for something keep no core busy, as is usual where a handler
// waits for a database.
const (
	fewHandlers = 8
	handlerWait = 2 * time.Millisecond
)

// processes measures consumers in several processes.
func (b *bench) processes(ctx context.Context) error {
	connect, err := b.single(ctx)
	if err != nil {
		return err
	}
	if err := b.scale(ctx, connect); err != nil {
		return err
	}
	return b.standStill(ctx, connect)
}

func (b *bench) scale(ctx context.Context, connect bus.Config) error {
	if err := b.title("hops of several processes, one replica, file, partition ledger: %s events, once", terminal.Number(b.hops)); err != nil {
		return err
	}
	table := terminal.NewTable(">processes", ">handlers each", ">each waits", ">hops/s", ">ratio")
	for _, w := range []work{
		{handlers: fewHandlers, wait: handlerWait},
		{handlers: hopbench.DefaultConcurrency, wait: handlerWait},
		{handlers: hopbench.DefaultConcurrency},
	} {
		w.ledger = ledger.Partition
		alone := 0.0
		for _, n := range []int{1, 2, 4} {
			rate, err := b.rateOf(ctx, connect, n, w)
			if err != nil {
				return err
			}
			if n == 1 {
				alone = rate
			}
			b.results.Scale = append(b.results.Scale, scaleFigure{string(w.ledger), w.wait, w.handlers, n, rate})
			b.say("processes: %d with %d handlers of %v: %s/s", n, w.handlers, w.wait, terminal.Number(int(rate)))
			table.Row(fmt.Sprint(n), fmt.Sprint(w.handlers), w.wait.String(), terminal.Number(int(rate)), ratio(rate, alone))
		}
	}
	_, err := table.WriteTo(b.out)
	return err
}

// rateOf is how fast n processes handle what waits, from the tenth of it to nine tenths:
// before, they share the partitions among them, and after that some have nothing to do.
func (b *bench) rateOf(ctx context.Context, connect bus.Config, n int, w work) (rate float64, err error) {
	s, err := hopbench.Open(ctx, connect, hopbench.Prefix(), 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	if err := s.Publish(ctx, 0, b.hops); err != nil {
		return 0, err
	}
	for range n {
		child, err := b.startWorker(ctx, connect.URL, s, w)
		if err != nil {
			return 0, err
		}
		drained := make(chan struct{})
		go func() { defer close(drained); child.drain() }()
		defer func() {
			err = errors.Join(err, child.end(syscall.SIGTERM))
			<-drained
		}()
	}
	begun, at, err := reached(ctx, s, b.hops/10)
	if err != nil {
		return 0, err
	}
	ended, to, err := reached(ctx, s, b.hops*9/10)
	if err != nil {
		return 0, err
	}
	if _, _, err := reached(ctx, s, b.hops); err != nil {
		return 0, err
	}
	return float64(to-at) / ended.Sub(begun).Seconds(), s.Verify(ctx, b.hops)
}

// reached waits until so many outgoing events are stored, and says when and how many were.
func reached(ctx context.Context, s *hopbench.Stage, want int) (time.Time, int, error) {
	stream, err := s.Bus.Stream(ctx, s.Bus.Names().EventsStream())
	if err != nil {
		return time.Time{}, 0, err
	}
	// A consumer that reads nothing counts what is stored, without a list of subjects.
	counter, err := s.Bus.JetStream().CreateConsumer(ctx, stream.CachedInfo().Config.Name, jetstream.ConsumerConfig{
		FilterSubject: s.Bus.Names().TypeFilter(hopbench.Out.Type()), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Hour,
	})
	if err != nil {
		return time.Time{}, 0, err
	}
	for begun := time.Now(); ; {
		info, err := counter.Info(ctx)
		if err != nil {
			return time.Time{}, 0, err
		}
		now, stored := time.Now(), int(info.NumPending) //nolint:gosec // far from the largest int
		switch {
		case stored >= want:
			return now, stored, nil
		case now.Sub(begun) > 5*time.Minute:
			return now, stored, fmt.Errorf("%w: %d of %d outgoing events", hopbench.ErrStalled, stored, want)
		}
		select {
		case <-ctx.Done():
			return now, stored, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
