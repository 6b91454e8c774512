package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/synadia-io/orbit.go/jetstreamext"

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
	// Logger logs crashes of owners. Defaults to silence.
	Logger zerolog.Logger
}

// Partitions is the ledger of consumers that share their events by partition (ADR
// 0006): an event's key says on which partition it is, and a partition has one owner
// at a time. What the owner's handlers emit, the documents that they change and a
// page with the keys of their events become durable in one atomic batch, for many
// events at once.
//
// An owner begins with [Partitions.Take] and has each message enter its [Tenure]; a
// [Request] names both. There is nothing to claim from others.
type Partitions struct {
	*engine
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
	s := newStreamStore(b, retention, cfg.Logger)
	return &Partitions{
		engine: newEngine(&partitionStore{s}, retention, time.Now, cfg.Logger), documents: documents{s}, claims: cfg.Claims,
		tenures: map[*Tenure]struct{}{},
	}, nil
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

// Head is the last page of a partition.
type Head struct {
	Partition int
	Owner     string // "" if it never had one
	Farewell  bool   // the owner has ended, and nothing runs
	Floor     uint64 // up to this sequence everything has ended
	// Types says up to which sequence the events of each type have ended: up to the
	// floor, but for those that the owner before did not handle.
	Types map[event.Type]uint64
	// Page is what the page is: "fence", "page" or "farewell".
	Page string
	At   time.Time
}

// Heads returns the last pages of a consumer's partitions, by partition, of those
// that have one. Any replica may answer, which may lag behind. Errors match
// [ErrBadMark], [ErrNoStream] or [bus.ErrUnavailable].
func (l *Partitions) Heads(ctx context.Context, c event.Consumer) (map[int]Head, error) {
	root := l.marks.prefix + string(c) + "."
	heads := map[int]Head{}
	answers, err := jetstreamext.GetLastMsgsFor(ctx, l.marks.bus.JetStream(), l.marks.stream, []string{root + "*" + pageSuffix})
	if err != nil {
		return nil, fmt.Errorf("dedup: pages of %s: %w: %w", c, bus.ErrUnavailable, err)
	}
	for m, err := range answers {
		switch {
		case errors.Is(err, jetstreamext.ErrNoMessages):
			return heads, nil
		case err != nil:
			return nil, fmt.Errorf("dedup: pages of %s: %w: %w", c, bus.ErrUnavailable, err)
		}
		p, err := pageOf(m)
		if err != nil {
			return nil, fmt.Errorf("dedup: pages of %s: %w", c, err)
		}
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(m.Subject, root), pageSuffix))
		if err != nil {
			continue // not one of ours
		}
		h := Head{
			Partition: n, Owner: p.owner, Farewell: p.kind == pageFarewell, Floor: p.floor,
			Types: map[event.Type]uint64{}, Page: string(p.kind), At: m.Time,
		}
		for t, at := range p.types {
			h.Types[t] = min(at, p.floor)
		}
		heads[n] = h
	}
	return heads, nil
}

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

// Health returns an error matching [ErrHalfStored] while the server has stored half a
// batch of this ledger, else nil.
func (l *Partitions) Health() error { return l.documents.Health() }

// Mark returns what is known of an event; false when nothing is, or no longer. An event
// that has ended without a story is looked for on all pages: that is for people.
// Errors are those of [KV.Mark].
func (l *Partitions) Mark(ctx context.Context, c event.Consumer, k event.EventKey) (m Mark, known bool, err error) {
	if m, known, err = l.engine.Mark(ctx, c, k); known || err != nil {
		return m, known, err
	}
	key, err := k.Binary()
	if err != nil {
		return Mark{}, false, fmt.Errorf("dedup: mark of %s.%s: %w: %w", c, k, ErrConfig, err)
	}
	now, err := l.Now(ctx)
	if err != nil {
		return Mark{}, false, err
	}
	pages := bus.ScanConfig{Filter: l.marks.prefix + string(c) + ".*" + pageSuffix, From: 1}
	err = l.marks.bus.ScanMessages(ctx, l.marks.stream, pages, func(found jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		p, err := pageOf(&jetstream.RawStreamMsg{Subject: found.Subject(), Sequence: meta.Sequence.Stream, Header: found.Headers(), Data: found.Data()})
		if err != nil {
			return false, err
		}
		if slices.Contains(p.ended, key) && now.Sub(meta.Timestamp) <= l.retention {
			m, known = record{State: stateDone}.mark(meta.Timestamp), true
		}
		return !known, nil
	})
	if err != nil {
		return Mark{}, false, fmt.Errorf("dedup: mark of %s.%s: %w", c, k, l.marks.missing(err))
	}
	return m, known, nil
}

// Claim says whether an event of an owned partition is to be handled. It asks nobody,
// unless the event has to say that it starts. Errors match [ErrConfig] for a request
// without a tenure, [ErrLeaseLost], or are those of Complete.
func (l *Partitions) Claim(ctx context.Context, r Request) (*Claim, error) {
	t := r.Tenure
	if t == nil {
		return nil, fmt.Errorf("dedup: claim %s.%s: %w: it was not read from a partition, which this ledger needs", r.Consumer, r.Key, ErrConfig)
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("dedup: claim %s.%s: %w", r.Consumer, r.Key, err)
	}
	key, err := r.Key.Binary()
	if err != nil {
		return nil, fmt.Errorf("dedup: claim: %w: %w", ErrConfig, err)
	}
	if err := l.certain(ctx, t); err != nil {
		return nil, fmt.Errorf("dedup: claim %s.%s: %w", r.Consumer, r.Key, err)
	}
	c, starts, err := t.admit(r, key)
	if err != nil || c.Status != Claimed || !starts {
		return c, err
	}
	what := kept{key: key, starts: true, record: c.record}
	if c.Crashes == 0 {
		_, err = l.marks.group.commit(ctx, newPageStep(t, what))
		t.doubt(unplaced(err))
	} else { // the crash becomes part of its story
		err = l.settle(ctx, c, what, nil)
	}
	if err != nil {
		t.leave(c)
		return nil, fmt.Errorf("dedup: claim %s.%s: %w", r.Consumer, r.Key, err)
	}
	t.counted(c)
	c.started = true
	return c, nil
}

// certain finds out whether a batch that was not answered is stored: if so, a page that
// follows the one before it is refused, and the partition has to be taken anew.
// Until then no handler runs: it would run again and again during an outage.
func (l *Partitions) certain(ctx context.Context, t *Tenure) error {
	t.mu.Lock()
	doubtful := t.doubtful
	t.mu.Unlock()
	if !doubtful {
		return nil
	}
	_, err := l.marks.group.commit(ctx, newPageStep(t, kept{}))
	t.doubt(err)
	return err
}

// admit decides about an event, and says whether it has to be told that it starts.
func (t *Tenure) admit(r Request, key event.BinaryKey) (c *Claim, starts bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, false, fmt.Errorf("dedup: claim %s.%s: %w: partition %d is another owner's", r.Consumer, r.Key, ErrLeaseLost, t.partition)
	}
	story := t.stories[r.Key]
	_, suspect := t.suspects[key]
	_, running := t.running[r.Key]
	before := story.record
	switch {
	case running: // another copy of it, under another key
		return &Claim{Request: r, Status: Busy, RetryIn: retryMargin}, false, nil
	case (before.State == stateParked || before.State == stateDiscarded) && r.Replay <= before.Replay:
		return &Claim{Request: r, Status: Parked}, false, nil
	case before.State == stateDone, before.State == "" && t.ended.has(digest(key[:16])):
		return &Claim{Request: r, Status: Done}, false, nil
	}
	if suspect {
		before.Crashes++
	}
	next := before.claimed("", r)
	if suspect {
		next.Crashes = max(next.Crashes, 1)
	}
	starts = next.Crashes > 0 || t.careful > 0 || t.ledger.claims
	if t.careful > 0 {
		t.careful--
	}
	t.running[r.Key] = struct{}{}
	return &Claim{
		Request: r, Status: Claimed,
		Attempts: next.Attempts, Failures: next.Failures, Crashes: next.Crashes,
		binary: key, revision: story.revision, record: next,
	}, starts, nil
}

// counted says that the crash of a suspect is on record: coming again it has had no
// other one.
func (t *Tenure) counted(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.suspects, c.binary)
}

// leave ends a claim in this process.
func (t *Tenure) leave(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, c.Request.Key)
}

// Extend does nothing: an owner has no lease. It tells when the partition is lost, with
// an error that matches [ErrLeaseLost].
func (l *Partitions) Extend(_ context.Context, c *Claim) error {
	if c.Status == Claimed && c.Request.Tenure.isLost() {
		return fmt.Errorf("dedup: extend %s.%s: %w: partition %d is another owner's", c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.Request.Tenure.partition)
	}
	return nil
}

// Complete makes out, the documents among it and the end of the event durable, all or
// nothing. What belongs to another stream, timers that are set, is stored before.
// Errors match [ErrLeaseLost], [ErrStale], or are those of [bus.Bus.SendBatch] and
// [bus.Pending.Wait]. After an error the claim is still held.
func (l *Partitions) Complete(ctx context.Context, c *Claim, out []*nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.end(ctx, c, "complete", stateDone, c.record.done(), kept{ended: true, sequence: c.Request.Sequence}, out)
}

// Release gives the event back; it can be claimed again at once. With a failure the
// attempt is recorded. With later, a message that brings the event back, which is
// stored first, this delivery of it has ended. Errors are those of Complete. After
// one the event can be claimed again all the same: its claim finds out what is stored.
func (l *Partitions) Release(ctx context.Context, c *Claim, failure *event.Attempt, later *nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Status == Claimed && c.record.State == stateClaimed {
		defer c.Request.Tenure.leave(c)
	}
	next := c.record.failed(failure).ended(stateWaiting)
	if later == nil {
		return l.end(ctx, c, "release", stateWaiting, next, kept{}, nil)
	}
	if err := publish(ctx, l.marks.bus, []*nats.Msg{later}); err != nil {
		return fmt.Errorf("dedup: release %s.%s: %w", c.Request.Consumer, c.Request.Key, err)
	}
	return l.end(ctx, c, "release", stateWaiting, next, kept{sequence: c.Request.Sequence}, nil)
}

// Park makes the letter durable and then the record of the parked event, which has no
// end but a newer replay or Discard. An owner that has lost the partition finds out
// before it sends the letter. Errors are those of Complete.
func (l *Partitions) Park(ctx context.Context, c *Claim, failure *event.Attempt, letter *nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Status == Claimed && c.record.State == stateClaimed {
		_, err := l.marks.group.commit(ctx, newPageStep(c.Request.Tenure, kept{}))
		if err == nil {
			err = publish(ctx, l.marks.bus, []*nats.Msg{letter})
		}
		if err != nil {
			return fmt.Errorf("dedup: park %s.%s: %w", c.Request.Consumer, c.Request.Key, err)
		}
	}
	return l.end(ctx, c, "park", stateParked, c.record.failed(failure).ended(stateParked), kept{sequence: c.Request.Sequence}, nil)
}

// end writes how a claim has ended. The caller holds c.mu.
func (l *Partitions) end(ctx context.Context, c *Claim, verb string, s state, next record, what kept, out []*nats.Msg) error {
	switch {
	case c.Status != Claimed:
		return fmt.Errorf("dedup: %s %s.%s: %w: the claim was answered %s", verb, c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.Status)
	case c.record.State == s:
		return nil // again
	case c.record.State != stateClaimed:
		return fmt.Errorf("dedup: %s %s.%s: %w: the claim has ended, %s", verb, c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.record.State)
	}
	what.key, what.record = c.binary, next
	if err := l.settle(ctx, c, what, out); err != nil {
		if errors.Is(err, ErrLeaseLost) {
			c.Request.Tenure.leave(c)
		}
		return fmt.Errorf("dedup: %s %s.%s: %w", verb, c.Request.Consumer, c.Request.Key, err)
	}
	c.Request.Tenure.leave(c)
	return nil
}

// settle commits a step of a claim, and replaces the event's record if it has a story.
// When a person has changed the record meanwhile, the step follows that.
func (l *Partitions) settle(ctx context.Context, c *Claim, what kept, out []*nats.Msg) error {
	t, next := c.Request.Tenure, what.record
	storied := next.State != stateDone && (!next.blank() || c.started || next.Crashes > 0) || c.revision > 0
	if !storied && len(out) == 0 && what.sequence == 0 && !what.ended && !what.starts {
		return l.released(c, next)
	}
	set, rest, cancelled := apart(l.marks.bus.Names(), out)
	if err := publish(ctx, l.marks.bus, set); err != nil {
		t.doubt(err)
		return err
	}
	for range claimTries {
		var mark *nats.Msg
		if storied {
			var err error
			if mark, err = l.marks.mark(strings.TrimPrefix(t.root, l.marks.prefix)+string(c.Request.Key), c.revision, next); err != nil {
				return err
			}
		}
		s := newStep(mark, c.revision, rest)
		s.tenure, s.kept = t, what
		s.size += pageShare
		revision, err := l.marks.group.commit(ctx, s)
		t.doubt(unplaced(err))
		if errors.Is(err, errConflict) && mark != nil {
			if c.revision, err = t.refresh(ctx, c.Request.Key, mark.Subject); err == nil {
				continue
			}
		}
		if err != nil {
			return l.marks.missing(unplaced(err))
		}
		if mark != nil {
			c.revision = revision
		}
		c.record = next
		l.marks.cancel(ctx, cancelled)
		return nil
	}
	return fmt.Errorf("%w: the record keeps moving", bus.ErrUnavailable)
}

// unplaced makes an outage of a conflict that is not explained: the page, or the
// record, was not stored, and the replica that was asked for the reason lags behind.
func unplaced(err error) error {
	if errors.Is(err, errConflict) {
		return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
	}
	return err
}

func (l *Partitions) released(c *Claim, next record) error {
	if c.Request.Tenure.isLost() {
		return fmt.Errorf("%w: partition %d is another owner's", ErrLeaseLost, c.Request.Tenure.partition)
	}
	c.record = next
	return nil
}

// refresh reads a record that a person has changed.
func (t *Tenure) refresh(ctx context.Context, k event.EventKey, subject string) (uint64, error) {
	m, err := t.ledger.marks.latest(ctx, subject)
	if err != nil {
		return 0, err
	}
	e, err := entryOf(m)
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stories[k] = e
	return e.revision, nil
}

// partitionStore finds the records of events with a story for people, who name an event by its
// key and not by its partition.
type partitionStore struct{ *streamStore }

func (s *partitionStore) read(ctx context.Context, key string) (entry, error) {
	m, err := s.find(ctx, key)
	if err != nil {
		return entry{}, err
	}
	return entryOf(m)
}

func (s *partitionStore) write(ctx context.Context, c *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	if m, err := s.find(ctx, key); err != nil {
		return 0, err
	} else if m != nil {
		key = strings.TrimPrefix(m.Subject, s.prefix)
	}
	return s.streamStore.write(ctx, c, key, after, r, out)
}

// find looks for the record under <consumer>.<event key> on any partition.
func (s *partitionStore) find(ctx context.Context, key string) (*jetstream.RawStreamMsg, error) {
	c, k := splitKey(key)
	if k == knownKey {
		return s.latest(ctx, s.prefix+key)
	}
	answers, err := jetstreamext.GetLastMsgsFor(ctx, s.bus.JetStream(), s.stream, []string{s.prefix + string(c) + ".*." + string(k)})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
	}
	var found []*jetstream.RawStreamMsg
	for m, err := range answers {
		switch {
		case errors.Is(err, jetstreamext.ErrNoMessages):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
		}
		found = append(found, m)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return slices.MaxFunc(found, func(a, b *jetstream.RawStreamMsg) int { return int(a.Sequence) - int(b.Sequence) }), nil //nolint:gosec // sequences of one stream
}
