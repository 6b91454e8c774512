package outbox

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

func TestRelayConfig(t *testing.T) {
	t.Parallel()
	o, err := New(nil, Config{Dialect: SQLite})
	if err != nil {
		t.Fatal(err)
	}
	for field, cfg := range map[string]RelayConfig{
		"":            {},
		"Batch":       {Batch: -1},
		"Batch 10001": {Batch: maxBatch + 1},
		"Lease":       {Lease: time.Second - 1},
		"Lease 1h0":   {Lease: maxLease + 1},
		"MaxDelay 1h": {MaxDelay: maxLease + 1},
		"Types":       {Types: []event.Type{"placed"}},
		"Poll":        {Poll: time.Millisecond},
		"MaxAttempts": {MaxAttempts: -1},
		"BaseDelay":   {BaseDelay: -1},
		"MaxDelay":    {BaseDelay: time.Minute, MaxDelay: time.Second},
		"Retention":   {Retention: -1},
	} {
		_, err := NewRelay(o, new(bus.Bus), cfg)
		if field == "" && err != nil {
			t.Errorf("the defaults: %v", err)
		}
		if field != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
	registry := prometheus.NewRegistry()
	for i, want := range []error{nil, ErrConfig} {
		if _, err := NewRelay(o, new(bus.Bus), RelayConfig{Metrics: registry}); !errors.Is(err, want) {
			t.Errorf("relay %d of a registry: %v, want %v", i, err, want)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	const batch, lease = 100, 8 * time.Second
	var p pace
	for i, step := range []struct {
		took time.Duration
		want int
	}{
		{0, 100},
		{5 * time.Second, 50},
		{3 * time.Second, 50},
		{time.Minute, 25},
		{time.Minute, 16},
		{time.Minute, 16},
		{time.Second / 2, 25},
		{time.Second / 2, 50},
	} {
		p.adapt(step.took, lease, batch)
		if got := p.size(batch); got != step.want {
			t.Errorf("step %d: size is %d, want %d", i, got, step.want)
		}
	}
}
