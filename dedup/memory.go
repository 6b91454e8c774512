package dedup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// MemoryConfig are the choices of [NewMemory].
type MemoryConfig struct {
	// Retention is how long done events are remembered. At least one second.
	// Defaults to 24 h.
	Retention time.Duration
	// Now is the clock of leases and lifetimes. Defaults to time.Now.
	Now func() time.Time
}

// Sink makes messages durable, all or an error: what [Memory] does with the
// outgoing messages of Complete and the letter of Park.
type Sink func(ctx context.Context, out []*nats.Msg) error

// Memory is a ledger without a server, for tests: the same rules as [KV], in
// this process's memory.
type Memory struct {
	*engine
	marks *memoryStore
	now   func() time.Time
}

var _ Ledger = (*Memory)(nil)

// NewMemory returns an empty ledger whose outgoing messages go to sink. The
// error matches [ErrConfig].
func NewMemory(cfg MemoryConfig, sink Sink) (*Memory, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	retention, err := retentionOf(cfg.Retention)
	if err != nil {
		return nil, err
	}
	marks := &memoryStore{retention: retention, clock: cfg.Now, sink: sink, marks: map[string]memoryMark{}}
	return newMemory(marks, cfg.Now), nil
}

func newMemory(marks *memoryStore, now func() time.Time) *Memory {
	return &Memory{engine: newEngine(marks, marks.retention, now, zerolog.Nop()), marks: marks, now: now}
}

// Peer returns another worker's ledger on the same marks, as a second process
// would have it.
func (m *Memory) Peer() *Memory { return newMemory(m.marks, m.now) }

// Prepare returns an error matching [ErrConfig] when the retention is shorter
// than horizon, as [KV.Prepare] does.
func (m *Memory) Prepare(_ context.Context, horizon time.Duration) error {
	return checkHorizon(m.marks.retention, horizon)
}

// Len counts the marks, expired ones excluded.
func (m *Memory) Len() int { return m.marks.sweep() }

// memoryStore is a store in a map.
type memoryStore struct {
	retention time.Duration
	clock     func() time.Time
	sink      Sink

	mu       sync.Mutex
	marks    map[string]memoryMark
	revision uint64
	sweepAt  int
}

type memoryMark struct {
	entry
	expires time.Time // zero: never
}

func (s *memoryStore) now(context.Context) (time.Time, error) { return s.clock(), nil }

func (s *memoryStore) read(ctx context.Context, key string) (entry, error) {
	if err := ctx.Err(); err != nil {
		return entry{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(key), nil
}

// get returns the mark unless it has expired. The caller holds s.mu.
func (s *memoryStore) get(key string) entry {
	m := s.marks[key]
	if m.expired(s.clock()) {
		delete(s.marks, key)
		return entry{}
	}
	return m.entry
}

func (m memoryMark) expired(now time.Time) bool { return !m.expires.IsZero() && !now.Before(m.expires) }

func (s *memoryStore) write(ctx context.Context, _ *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if len(out) > 0 && s.sink != nil {
		if err := s.sink(ctx, out); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.get(key).revision != after {
		return 0, fmt.Errorf("%w: %s", errConflict, key)
	}
	s.revision++
	m := memoryMark{entry: entry{revision: s.revision, record: r, created: s.clock()}}
	if !r.kept() {
		m.expires = m.created.Add(s.retention)
	}
	s.marks[key] = m
	if len(s.marks) >= max(s.sweepAt, minSweep) {
		s.sweepAt = 2 * s.deleteExpired()
	}
	return s.revision, nil
}

func (s *memoryStore) sweep() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deleteExpired()
}

// deleteExpired returns how many marks are left. The caller holds s.mu.
func (s *memoryStore) deleteExpired() int {
	now := s.clock()
	for key, m := range s.marks {
		if m.expired(now) {
			delete(s.marks, key)
		}
	}
	return len(s.marks)
}
