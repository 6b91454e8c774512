package topology_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// addStream makes a stream that is no part of a topology.
func addStream(t *testing.T, b *bus.Bus, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	s, err := b.JetStream().CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.JetStream().DeleteStream(context.Background(), cfg.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Error(err)
		}
	})
	return s
}

// publishTo sends a plain message and waits for its answer.
func publishTo(t *testing.T, b *bus.Bus, m *nats.Msg) error {
	t.Helper()
	p, err := b.Send(t.Context(), m)
	if err == nil {
		_, err = p.Wait(t.Context())
	}
	return err
}

func messages(t *testing.T, b *bus.Bus) uint64 {
	t.Helper()
	s, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func mention(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not mention %q", text, want)
		}
	}
}
