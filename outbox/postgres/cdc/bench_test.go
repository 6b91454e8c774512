package cdc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// BenchmarkLatency measures the time from the return of a commit until the
// stream has stored the event, at rest (20 commits a second) and under load (500
// a second by 8 writers), for a relay that reads the feed and for one that is
// woken by the trigger. Postgres waits for its disk.
func BenchmarkLatency(b *testing.B) {
	s := pgtest.Start(b, pg.Config{Durable: true})
	for _, load := range []struct {
		name               string
		writers, perSecond int
	}{{"idle", 1, 20}, {"500per_s", 8, 500}} {
		for _, kind := range []string{"feed", "watch"} {
			b.Run(load.name+"/"+kind, func(b *testing.B) {
				for b.Loop() {
					report(b, latencies(b, s.Database(b), kind == "feed", load.writers, load.perSecond))
				}
			})
		}
	}
}

func report(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	for _, q := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*q/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", q))
	}
}

// latencies has writers commit for ten seconds.
func latencies(b *testing.B, target string, feed bool, writers, perSecond int) []time.Duration {
	b.Helper()
	nats := bustest.StartServer(b, bustest.ServerConfig{})
	conn := bustest.Connect(b, bus.Config{URL: nats.URL(), Names: event.Names{Prefix: bustest.Prefix()}})
	r := newRig(b, target, bustest.Provision(b, conn, topology.Config{}))
	var stop func()
	if feed {
		_, stop = r.relay(outbox.RelayConfig{})
		r.attached()
	} else {
		relay, err := outbox.NewRelay(r.outbox, r.bus, outbox.RelayConfig{})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		stop = func() {
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		}
	}
	defer stop()
	r.add("warm", "warm")
	r.expect("warm")
	all := 10 * perSecond
	var mu sync.Mutex
	committed := make(map[string]time.Time, all)
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			tick := time.NewTicker(time.Second * time.Duration(writers) / time.Duration(perSecond))
			defer tick.Stop()
			for i := range all / writers {
				<-tick.C
				id := fmt.Sprint(w, "-", i)
				r.add(fmt.Sprint("k", w, "-", i%50), id)
				at := time.Now()
				mu.Lock()
				committed[id] = at
				mu.Unlock()
			}
		})
	}
	work.Wait()
	r.statuses(fmt.Sprint("PUBLISHED ", len(committed)+1))
	stream, err := r.bus.JetStream().Stream(b.Context(), r.bus.Names().EventsStream())
	if err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, 0, all)
	for seq := uint64(2); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(b.Context(), seq)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, max(0, m.Time.Sub(committed[strings.Trim(string(m.Data), `"`)])))
	}
	return took
}
