package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

// insertFigures are committed orders a second.
type insertFigures struct {
	Orders  int       `json:"orders"`
	Without []float64 `json:"without_per_second"`
	With    []float64 `json:"with_outbox_per_second"`
}

// drainFigures are messages a second.
type drainFigures struct {
	Rows  int       `json:"rows"`
	Raw   []float64 `json:"raw_publish_per_second"`
	Relay []float64 `json:"relay_per_second"`
}

// writers commit at the same time.
const writers = 8

func (b *bench) outboxInserts(ctx context.Context, connect bus.Config, e engine, f *outboxFigures) error {
	f.Insert.Orders = b.inserts
	for rep := range b.reps {
		for _, way := range []struct {
			withEvent bool
			to        *[]float64
		}{{false, &f.Insert.Without}, {true, &f.Insert.With}} {
			rate, err := insertRate(ctx, connect, e, b.inserts, way.withEvent)
			if err != nil {
				return err
			}
			*way.to = append(*way.to, rate)
		}
		b.say("outbox %s, orders %d/%d: %s/s without, %s/s with", e.name, rep+1, b.reps,
			terminal.Number(int(f.Insert.Without[rep])), terminal.Number(int(f.Insert.With[rep])))
	}
	return nil
}

func insertRate(ctx context.Context, connect bus.Config, e engine, n int, withEvent bool) (rate float64, err error) {
	s, err := openShop(ctx, connect, e)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	begun := time.Now()
	err = inParallel(n, func(i int) error { return s.order(ctx, i, withEvent) })
	return float64(n) / time.Since(begun).Seconds(), err
}

// inParallel does n things with as many goroutines as there are writers.
func inParallel(n int, do func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, writers)
	var work sync.WaitGroup
	for w := range errs {
		work.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[w] == nil; i = int(next.Add(1)) - 1 {
				errs[w] = do(i)
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

func (b *bench) outboxDrain(ctx context.Context, connect bus.Config, e engine, f *outboxFigures) error {
	f.Drain.Rows = b.rows
	for rep := range b.reps {
		raw, err := publishRate(ctx, connect, b.rows, publishRaw)
		if err != nil {
			return err
		}
		relay, err := drainRate(ctx, connect, e, b.rows)
		if err != nil {
			return err
		}
		f.Drain.Raw, f.Drain.Relay = append(f.Drain.Raw, raw), append(f.Drain.Relay, relay)
		b.say("outbox %s, drain %d/%d: raw %s/s, relay %s/s", e.name, rep+1, b.reps, terminal.Number(int(raw)), terminal.Number(int(relay)))
	}
	return nil
}

// drainRate has a relay publish n rows that are there when it starts.
func drainRate(ctx context.Context, connect bus.Config, e engine, n int) (rate float64, err error) {
	s, err := openShop(ctx, connect, e)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.fill(ctx, 0, n); err != nil {
		return 0, err
	}
	begun := time.Now()
	err = s.relaying(ctx, outbox.RelayConfig{}, func(ctx context.Context) error { return s.drained(ctx, n) })
	if err != nil {
		return 0, err
	}
	rate = float64(n) / time.Since(begun).Seconds()
	return rate, s.stage.Verify(ctx, n)
}
