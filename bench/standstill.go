package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// standStillFigure is the longest time that an event of a steady flow took when the
// processes of a consumer changed.
type standStillFigure struct {
	Ledger string        `json:"ledger"`
	Change string        `json:"change"`
	Worst  time.Duration `json:"worst_ns"`
}

// The changes, in this order.
const (
	changeNone  = "none"
	changeJoin  = "a process joins"
	changeLeave = "a process is told to stop"
	changeKill  = "a process is killed"
)

// flow is how often an event is published, so that the load is no matter.
const flow = 5 * time.Millisecond

// standStill publishes a steady flow while the processes of a consumer change.
func (b *bench) standStill(ctx context.Context, connect bus.Config) error {
	kinds := []ledger.Kind{ledger.KV, ledger.Partition}
	if b.quick {
		kinds = kinds[1:] // with the other one an event stands still for the whole wait for its acknowledgement
	}
	for _, kind := range kinds {
		figures, err := b.changes(ctx, connect, kind)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		b.results.StandStill = append(b.results.StandStill, figures...)
	}
	if err := b.title("the longest time from publishing an event to what follows from it, %d events a second, two processes, once", time.Second/flow); err != nil {
		return err
	}
	table := terminal.NewTable("ledger", "what changes", ">longest")
	for _, f := range b.results.StandStill {
		table.Row(f.Ledger, f.Change, f.Worst.Round(time.Millisecond).String())
	}
	_, err := table.WriteTo(b.out)
	return err
}

func (b *bench) changes(ctx context.Context, connect bus.Config, kind ledger.Kind) (figures []standStillFigure, err error) {
	s, err := hopbench.Open(ctx, connect, hopbench.Prefix(), 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	var children []*worker
	start := func() error {
		child, err := b.startWorker(ctx, connect.URL, s, work{ledger: kind, handlers: fewHandlers})
		if err != nil {
			return err
		}
		children = append(children, child)
		go child.drain()
		return nil
	}
	stop := func(signal syscall.Signal) error {
		child := children[0]
		children = children[1:]
		return child.end(signal)
	}
	defer func() {
		for len(children) > 0 {
			err = errors.Join(err, stop(syscall.SIGTERM))
		}
	}()
	if err := start(); err != nil {
		return nil, err
	}
	times, err := watchFlow(ctx, s)
	if err != nil {
		return nil, err
	}
	defer times.stop()
	// The first process has all partitions when it has handled something.
	if _, err := times.worst(ctx, s, b.steady/10); err != nil {
		return nil, err
	}
	for _, change := range []struct {
		name string
		do   func() error
	}{
		{changeNone, func() error { return nil }},
		{changeJoin, start},
		{changeLeave, func() error { return stop(syscall.SIGTERM) }},
		{changeJoin, start},
		{changeKill, func() error { return stop(syscall.SIGKILL) }},
	} {
		done := make(chan error, 1)
		time.AfterFunc(flow, func() { done <- change.do() })
		worst, err := times.worst(ctx, s, b.steady)
		if err = errors.Join(err, <-done); err != nil {
			return nil, fmt.Errorf("%s: %w", change.name, err)
		}
		b.say("processes: %s, %s: %v", kind, change.name, worst.Round(time.Millisecond))
		if !slices.ContainsFunc(figures, func(f standStillFigure) bool { return f.Change == change.name }) {
			figures = append(figures, standStillFigure{string(kind), change.name, worst})
		}
	}
	return figures, nil
}

// follower notes when events are published and when what follows from them comes.
type follower struct {
	stop func()

	mu        sync.Mutex
	published map[string]time.Time // by key, of those that nothing has followed yet
	longest   time.Duration
	next      int // event
}

func watchFlow(ctx context.Context, s *hopbench.Stage) (*follower, error) {
	f := &follower{published: map[string]time.Time{}}
	out, err := s.Bus.JetStream().CreateConsumer(ctx, s.Bus.Names().EventsStream(), jetstream.ConsumerConfig{
		FilterSubject: s.Bus.Names().TypeFilter(hopbench.Out.Type()), AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
	})
	if err != nil {
		return nil, err
	}
	consuming, err := out.Consume(func(m jetstream.Msg) {
		now, key := time.Now(), m.Headers().Get("ce-partitionkey")
		f.mu.Lock()
		defer f.mu.Unlock()
		if at, open := f.published[key]; open {
			f.longest = max(f.longest, now.Sub(at))
			delete(f.published, key)
		}
	})
	if err != nil {
		return nil, err
	}
	f.stop = consuming.Stop
	return f, nil
}

// worst publishes a steady flow of n events, waits until all have been followed, and
// returns the longest that one took.
func (f *follower) worst(ctx context.Context, s *hopbench.Stage, n int) (time.Duration, error) {
	f.mu.Lock()
	f.longest = 0
	f.mu.Unlock()
	tick := time.NewTicker(flow)
	defer tick.Stop()
	var ahead []*bus.Pending
	for range n {
		f.mu.Lock()
		draft := hopbench.Draft(f.next)
		f.next++
		f.published[string(draft.Key)] = time.Now()
		f.mu.Unlock()
		e, err := s.Bus.Seal(draft)
		if err != nil {
			return 0, err
		}
		p, err := s.Bus.PublishAsync(ctx, e)
		if err != nil {
			return 0, err
		}
		ahead = append(ahead, p)
		<-tick.C
	}
	for _, p := range ahead {
		if _, err := p.Wait(ctx); err != nil {
			return 0, err
		}
	}
	for begun := time.Now(); ; {
		f.mu.Lock()
		open, longest := len(f.published), f.longest
		f.mu.Unlock()
		switch {
		case open == 0:
			return longest, nil
		case time.Since(begun) > 2*time.Minute:
			return 0, fmt.Errorf("%w: nothing has followed from %d events", hopbench.ErrStalled, open)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
}
