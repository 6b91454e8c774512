package dedup_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	deduptest.Run(t, memoryBackend)
}

func TestMemory_model(t *testing.T) {
	t.Parallel()
	deduptest.RunModel(t, memoryBackend, true)
}

// clock is a clock that stands until it is moved.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// sink is a stream in memory that recognises message ids, as the server's does.
type sink struct {
	mu     sync.Mutex
	known  map[string]bool
	stored map[string]int
}

func (s *sink) store(_ context.Context, out []*nats.Msg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range out {
		if !strings.Contains(m.Subject, ".") {
			return bus.ErrNoStream
		}
		if id := m.Header.Get(nats.MsgIdHdr); !s.known[id] {
			s.known[id] = true
			s.stored[m.Subject]++
		}
	}
	return nil
}

func (s *sink) count(subject string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored[subject]
}

func memoryBackend(t *testing.T, retention time.Duration) deduptest.Backend {
	t.Helper()
	c := &clock{at: time.Unix(1_000_000_000, 0)}
	s := &sink{known: map[string]bool{}, stored: map[string]int{}}
	m, err := dedup.NewMemory(dedup.MemoryConfig{Retention: retention, Now: c.now}, s.store)
	if err != nil {
		t.Fatal(err)
	}
	return deduptest.Backend{
		Open:   func() deduptest.Ledger { return m.Peer() },
		Stored: s.count,
		Marks:  m.Len,
		Pass:   c.pass,
	}
}

func TestSub_second_retention_is_refused(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{500 * time.Millisecond, time.Second - 1, -time.Hour} {
		if _, err := dedup.NewKV(nil, dedup.Config{Retention: d}); !errors.Is(err, dedup.ErrConfig) {
			t.Errorf("KV with %v: got %v, want ErrConfig", d, err)
		}
		if _, err := dedup.NewMemory(dedup.MemoryConfig{Retention: d}, nil); !errors.Is(err, dedup.ErrConfig) {
			t.Errorf("Memory with %v: got %v, want ErrConfig", d, err)
		}
	}
}
