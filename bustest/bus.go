package bustest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/logs"
	"github.com/farandole/farandole/topology"
)

const setupTimeout = 60 * time.Second

// NewBus returns a bus on the shared server. It has its own random prefix, so
// that parallel tests do not see each other, and its topology is provisioned.
// Both end with the test.
func NewBus(tb testing.TB) *bus.Bus {
	tb.Helper()
	return Provision(tb, Connect(tb, bus.Config{
		InProcess: Server(tb),
		Names:     event.Names{Prefix: Prefix()},
	}), topology.Config{})
}

// Prefix returns a random prefix for event.Names.
func Prefix() string { return "t" + strings.ToLower(rand.Text()[:12]) }

// Connect connects a bus and closes it at the end of the test. Unless cfg says
// how long to wait for the server, that is a minute: the machine may be busy. Without a
// logger it is silent.
func Connect(tb testing.TB, cfg bus.Config) *bus.Bus {
	tb.Helper()
	if cfg.Wait == 0 {
		cfg.Wait = setupTimeout
	}
	cfg.Logger = logs.Or(cfg.Logger, zerolog.Nop)
	b, err := bus.Connect(tb.Context(), cfg)
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("bustest: %v", err)
		}
	})
	return b
}

// Provision makes the topology of b and deletes it at the end of the test.
func Provision(tb testing.TB, b *bus.Bus, cfg topology.Config) *bus.Bus {
	tb.Helper()
	wanted := topology.New(b.Names(), cfg)
	ctx, cancel := context.WithTimeout(tb.Context(), setupTimeout)
	defer cancel()
	if _, err := topology.Provision(ctx, b, wanted); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	tb.Cleanup(func() { remove(tb, b, wanted) })
	return b
}

// remove deletes the streams; a test may have deleted some, or its server.
func remove(tb testing.TB, b *bus.Bus, wanted topology.Topology) {
	tb.Helper()
	if b.Health() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	for _, s := range wanted.Streams {
		if err := b.JetStream().DeleteStream(ctx, s.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			tb.Errorf("bustest: delete stream %s: %v", s.Name, err)
		}
	}
}
