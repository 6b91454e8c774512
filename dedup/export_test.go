package dedup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
)

// PeerWithClock is [Memory.Peer] with a clock of its own that differs by skew.
func (m *Memory) PeerWithClock(skew time.Duration) *Memory {
	return newMemory(m.marks, func() time.Time { return m.now().Add(skew) })
}

// Flaky loses writes, or their answers, and can read from a replica that lags.
type Flaky struct {
	store

	mu     sync.Mutex
	writes int
	fail   func(write int) (before, after bool)
	behind int                // how many writes of a key a read misses
	past   map[string][]entry // each key's, latest last
}

// MakeFlaky puts a Flaky between a ledger and its store: fail says for each
// write, counted from 1, whether it is lost before or after it takes effect.
func (e *engine) MakeFlaky(fail func(write int) (before, after bool)) *Flaky {
	f := &Flaky{store: e.store, fail: fail, past: map[string][]entry{}}
	e.store = f
	return f
}

// Lag lets reads miss the latest writes of their key.
func (f *Flaky) Lag(behind int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = behind
}

func (f *Flaky) read(ctx context.Context, key string) (entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if past := f.past[key]; f.behind > 0 {
		return past[max(0, len(past)-f.behind)], nil
	}
	return f.store.read(ctx, key)
}

// Writes counts the writes tried.
func (f *Flaky) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

func (f *Flaky) write(ctx context.Context, c *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	f.mu.Lock()
	f.writes++
	lost, unanswered := f.fail(f.writes)
	f.mu.Unlock()
	if lost {
		return 0, fmt.Errorf("%w: write lost", bus.ErrUnavailable)
	}
	before, rerr := f.store.read(ctx, key)
	revision, err := f.store.write(ctx, c, key, after, r, out)
	if err == nil && rerr == nil {
		f.mu.Lock()
		f.past[key] = append(f.past[key], before)
		f.mu.Unlock()
	}
	if err == nil && unanswered {
		return 0, fmt.Errorf("%w: answer lost", bus.ErrUnavailable)
	}
	return revision, err
}
