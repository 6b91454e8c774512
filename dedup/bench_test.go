package dedup_test

import (
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// BenchmarkClaimComplete is what the ledger costs an event: alone, with one
// event emitted, and for a duplicate.
func BenchmarkClaimComplete(b *testing.B) {
	for _, bm := range []struct {
		name string
		out  int
		dup  bool
	}{{"mark", 0, false}, {"mark_and_emit", 1, false}, {"duplicate", 0, true}} {
		for _, goroutines := range []int{64, 1024} {
			b.Run(fmt.Sprintf("%s/%d", bm.name, goroutines), func(b *testing.B) {
				benchmark(b, bm.out, bm.dup, goroutines)
			})
		}
	}
}

func benchmark(b *testing.B, emit int, dup bool, goroutines int) {
	b.Helper()
	bb := bustest.NewBus(b)
	l, err := dedup.NewKV(bb, dedup.Config{})
	if err != nil {
		b.Fatal(err)
	}
	known := make([]event.EventKey, 4096)
	for i := range known {
		known[i] = event.NewEventKey("/bench", strconv.Itoa(-i))
		if c, err := l.Claim(b.Context(), claimOf(known[i])); err != nil || l.Complete(b.Context(), c, nil) != nil {
			b.Fatal("cannot complete the duplicates' originals")
		}
		if !dup {
			break
		}
	}
	b.ResetTimer()
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(max(1, goroutines/2))
	start := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			k := event.NewEventKey("/bench", strconv.FormatInt(i, 10))
			if dup {
				k = known[i%int64(len(known))]
			}
			c, err := l.Claim(b.Context(), claimOf(k))
			if err != nil {
				b.Error(err)
				return
			}
			if c.Status != dedup.Claimed {
				continue
			}
			var out []*nats.Msg
			for range emit {
				out = append(out, &nats.Msg{
					Subject: bb.Names().EventSubject("payment.captured.v1", event.Key(k)),
					Header:  nats.Header{nats.MsgIdHdr: {string(k)}},
					Data:    make([]byte, 256),
				})
			}
			if err := l.Complete(b.Context(), c, out); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "events/s")
}

// BenchmarkDocument is what an event costs that changes the document of its key, with
// 64 keys at once: reading the document, and the step.
func BenchmarkDocument(b *testing.B) {
	bb := bustest.NewBus(b)
	l, err := dedup.NewPartitions(bb, dedup.PartitionsConfig{})
	if err != nil {
		b.Fatal(err)
	}
	taken, err := l.Take(b.Context(), "payment", []int{7}, dedup.Ownership{Owner: "a", Window: 64, Types: []event.Type{"order.placed.v1"}})
	if err != nil {
		b.Fatal(err)
	}
	t := taken[7]
	var n, keys atomic.Int64
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		subject := bb.Names().StateSubject("payment", event.Key(fmt.Sprint("o-", keys.Add(1))))
		for pb.Next() {
			i := n.Add(1)
			r := dedup.Request{Consumer: "payment", Key: event.NewEventKey("/bench", strconv.FormatInt(i, 10)), Tenure: t, Lease: time.Second}
			c, err := l.Claim(b.Context(), r)
			if err != nil {
				b.Error(err)
				return
			}
			d, err := l.Document(b.Context(), subject)
			if err == nil {
				err = l.Complete(b.Context(), c, []*nats.Msg{dedup.PutDocument(subject, []byte(`{"phase":"doing","part":1}`), d.Version)})
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}
