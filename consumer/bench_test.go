package consumer_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// BenchmarkHop is what one event costs when many wait: claimed, handled, another one
// emitted, marked done, acknowledged. The server is in the same process; ns/op and
// allocs/op hold its part too.
func BenchmarkHop(b *testing.B) {
	b.Run("KV", func(b *testing.B) { hop(b, kvKind) })
	b.Run("partitions", func(b *testing.B) { hop(b, partitionKind) })
}

func hop(b *testing.B, kind kind) {
	b.Helper()
	type data struct {
		Text string `json:"text"`
	}
	in, out := event.Define[data]("bench.in.v1"), event.Define[data]("bench.out.v1")
	s := newSystem(b)
	s.kind = kind
	body := data{strings.Repeat("x", 240)}
	pending := make([]*bus.Pending, b.N)
	for i := range pending {
		e, err := s.bus.Seal(in.New(event.Key(strconv.Itoa(i)), body))
		if err == nil {
			pending[i], err = s.bus.PublishAsync(b.Context(), e)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, p := range pending {
		if _, err := p.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	done := make(chan struct{}, b.N)
	r := consumer.NewRegistry()
	consumer.Handle(r, in, func(_ context.Context, e event.Event, d data) (consumer.Step, error) {
		done <- struct{}{}
		return consumer.Emit(out.New(event.PartitionKey(e), d)), nil
	})
	b.ReportAllocs()
	b.ResetTimer()
	p := s.start(consumer.Config{Name: "bench", InFlight: 1024}, r, nil)
	for range b.N {
		<-done
	}
	bustest.Eventually(b, soon, func() bool { return p.Stats().Handled == uint64(b.N) })
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "hops/s")
}
