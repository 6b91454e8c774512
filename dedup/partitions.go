package dedup

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// PartitionsConfig are the choices of [NewPartitions].
type PartitionsConfig struct {
	// Retention is how long an event is remembered after its end: how late a copy of
	// it may come and still be recognised. At least one second. Defaults to 24 h.
	Retention time.Duration
	// Claims has a page say that an event starts before its handler runs, for handlers
	// with effects outside NATS: after a crash it is known which ones may have had
	// theirs. It costs one more page a group of events. Defaults to false: then only
	// events after a crash do so.
	Claims bool
	// Logger logs what could not be removed or cancelled after a step. Defaults to the bus's.
	Logger zerolog.Logger
}

// Partitions is the ledger of consumers that share their events by partition (ADR
// 0007): an event's key says on which partition it is, and a partition has one owner
// at a time. What the owner's handlers emit, the documents that they change and a
// page with the keys of their events become durable in one atomic batch, for many
// events at once.
//
// An owner begins with [Partitions.Take] and has each message enter its [Tenure]; a
// [Request] names both. There is nothing to claim from others.
type Partitions struct {
	book
	documents
	claims bool
	serial atomic.Uint64 // of pages

	mu      sync.Mutex
	tenures map[*Tenure]struct{}
}

var _ Ledger = (*Partitions)(nil)

// NewPartitions returns a ledger in b's event stream. It does no I/O. The error
// matches [ErrConfig].
func NewPartitions(b *bus.Bus, cfg PartitionsConfig) (*Partitions, error) {
	retention, err := retentionOf(cfg.Retention)
	if err != nil {
		return nil, err
	}
	s := newPartitionStore(b, retention, b.LoggerOr(cfg.Logger))
	return &Partitions{book: book{s, retention}, documents: documents{s}, claims: cfg.Claims, tenures: map[*Tenure]struct{}{}}, nil
}

// Prepare checks that the ledger can keep its promise: the server and the event stream
// take atomic batches and store events by partition, and the retention covers
// horizon. Errors match [ErrNoStream] or [ErrConfig] and say what to do, or
// [bus.ErrUnavailable].
func (l *Partitions) Prepare(ctx context.Context, horizon time.Duration) error {
	if err := checkHorizon(l.retention, horizon); err != nil {
		return err
	}
	if _, err := l.Count(ctx); err != nil {
		return fmt.Errorf("dedup: prepare: %w", err)
	}
	return nil
}

// Count is how many partitions the event stream has. Errors match [ErrNoStream]
// or [bus.ErrUnavailable].
func (l *Partitions) Count(ctx context.Context) (int, error) {
	stream, err := l.marks.open(ctx)
	if err != nil {
		return 0, err
	}
	cfg := stream.CachedInfo().Config
	if err := l.marks.check(cfg); err != nil {
		return 0, err
	}
	if cfg.SubjectTransform != nil {
		if n, ok := event.PartitionsIn(cfg.SubjectTransform.Destination); ok {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w %q does not store events by partition: run `farandole topology apply`", ErrNoStream, l.marks.name)
}

// Partitions returns the ledger itself.
func (l *Partitions) Partitions() *Partitions { return l }

// Run forgets events that are older than the retention, until ctx ends.
func (l *Partitions) Run(ctx context.Context) error {
	tick := time.NewTicker(max(l.retention/(4*slots), time.Second/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.mu.Lock()
			all := make([]*Tenure, 0, len(l.tenures))
			for t := range l.tenures {
				all = append(all, t)
			}
			l.mu.Unlock()
			for _, t := range all {
				t.tidy()
			}
		}
	}
}
