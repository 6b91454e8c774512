package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres/cdc"
)

// outboxLatency is from the return of a commit to the time at which the stream
// has stored the event, in microseconds.
type outboxLatency struct {
	WokenBy string  `json:"woken_by"`
	Load    string  `json:"load"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
}

const nameCDC = "change data capture"

// waker is a way in which a relay learns of commits.
type waker struct {
	name string
	set  func(s *shop, cfg *outbox.RelayConfig) error
}

func wakers(e engine) []waker {
	thisProcess := waker{"this process", func(*shop, *outbox.RelayConfig) error { return nil }}
	if e.name == nameSQLite {
		return []waker{thisProcess}
	}
	return []waker{
		thisProcess,
		{nameCDC, func(s *shop, cfg *outbox.RelayConfig) (err error) {
			cfg.Feed, err = cdc.New(s.target, s.box, cdc.Config{})
			return err
		}},
	}
}

// busy is how many commits a second there are in the loaded measurement.
const busy = 500

func (b *bench) outboxLatencies(ctx context.Context, connect bus.Config, e engine, f *outboxFigures) error {
	for _, w := range wakers(e) {
		for _, load := range []struct {
			name  string
			n     int
			every time.Duration
		}{
			{"idle", b.idle, 20 * time.Millisecond},
			{fmt.Sprintf("%d commits/s", busy), 10 * b.idle, time.Second / busy},
		} {
			samples, err := commitToStream(ctx, connect, e, w, load.n, load.every)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			l := outboxLatency{WokenBy: w.name, Load: load.name, P50: percentile(samples, 50), P99: percentile(samples, 99)}
			f.Latency = append(f.Latency, l)
			b.say("outbox %s, %s, %s: p50 %.1f ms, p99 %.1f ms", e.name, w.name, load.name, l.P50/1000, l.P99/1000)
		}
	}
	return nil
}

// commitToStream commits n orders, one at each tick, and compares when each
// commit had returned with when its event was stored.
func commitToStream(ctx context.Context, connect bus.Config, e engine, w waker, n int, every time.Duration) (samples []time.Duration, err error) {
	s, err := openShop(ctx, connect, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	cfg := outbox.RelayConfig{}
	if err := w.set(s, &cfg); err != nil {
		return nil, err
	}
	const warmUp = 20
	committed := make([]time.Time, n+warmUp)
	err = s.relaying(ctx, cfg, func(ctx context.Context) error {
		for i := range warmUp { // connections, plans, the feed
			if err := s.order(ctx, i, true); err != nil {
				return err
			}
		}
		if err := s.drained(ctx, warmUp); err != nil {
			return err
		}
		if err := s.paced(ctx, warmUp, committed, every); err != nil {
			return err
		}
		return s.drained(ctx, n+warmUp)
	})
	if err != nil {
		return nil, err
	}
	stored, err := s.stored(ctx)
	if err != nil {
		return nil, err
	}
	for i := warmUp; i < len(committed); i++ {
		at, ok := stored[hopbench.KeyOf(i)]
		if !ok {
			return nil, fmt.Errorf("%w: the event of order %d is missing", hopbench.ErrUnverified, i)
		}
		samples = append(samples, max(0, at.Sub(committed[i])))
	}
	return samples, nil
}

// paced commits orders from first on, one at each tick, and notes when it had.
func (s *shop) paced(ctx context.Context, first int, committed []time.Time, every time.Duration) error {
	var writing sync.WaitGroup
	defer writing.Wait()
	tick := time.NewTicker(every)
	defer tick.Stop()
	room := make(chan struct{}, writers)
	errs := make(chan error, len(committed))
	for i := first; i < len(committed); i++ {
		<-tick.C
		room <- struct{}{}
		writing.Go(func() {
			errs <- s.order(ctx, i, true)
			committed[i] = time.Now()
			<-room
		})
	}
	writing.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stored is when the stream has stored the events, by key.
func (s *shop) stored(ctx context.Context) (map[event.Key]time.Time, error) {
	at := map[event.Key]time.Time{}
	return at, follow.Read(ctx, s.stage.Bus, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		e, problem := m.Event()
		if problem != "" {
			return errors.New(problem)
		}
		at[event.PartitionKey(e)] = m.Time
		return nil
	})
}
