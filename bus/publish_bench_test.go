package bus_test

import (
	"context"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

// BenchmarkSend compares Send and Wait, from many goroutines, with the client
// library alone.
func BenchmarkSend(b *testing.B) {
	const workers, inFlight = 64, 32
	server := bustest.StartServer(b, bustest.ServerConfig{})
	connection := bustest.Connect(b, bus.Config{URL: server.URL()})
	if _, err := connection.JetStream().CreateStream(b.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		b.Fatal(err)
	}
	run := func(b *testing.B, send func(*nats.Msg) (func() error, error)) {
		b.Helper()
		b.ReportAllocs()
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				var waits []func() error
				for i := w; i < b.N; i += workers {
					wait, err := send(&nats.Msg{Subject: "s.x", Data: make([]byte, 128)})
					if err != nil {
						b.Error(err)
						return
					}
					if waits = append(waits, wait); len(waits) == inFlight {
						for _, wait := range waits {
							if err := wait(); err != nil {
								b.Error(err)
							}
						}
						waits = waits[:0]
					}
				}
				for _, wait := range waits {
					if err := wait(); err != nil {
						b.Error(err)
					}
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	}
	b.Run("client", func(b *testing.B) {
		run(b, func(m *nats.Msg) (func() error, error) {
			f, err := connection.JetStream().PublishMsgAsync(m)
			return func() error {
				select {
				case <-f.Ok():
					return nil
				case err := <-f.Err():
					return err
				}
			}, err
		})
	})
	b.Run("bus", func(b *testing.B) {
		ctx := context.Background()
		run(b, func(m *nats.Msg) (func() error, error) {
			p, err := connection.Send(ctx, m)
			return func() error {
				_, err := p.Wait(ctx)
				return err
			}, err
		})
	})
}

// BenchmarkMessage is what an event costs from draft to message.
func BenchmarkMessage(b *testing.B) {
	connection := bustest.NewBus(b)
	b.ReportAllocs()
	for b.Loop() {
		e, err := connection.Seal(storedOrder.New("ord-1", stored{Total: 1}))
		if err == nil {
			_, err = connection.Message(e)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
