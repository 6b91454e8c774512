package dedup

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// KV is the ledger in a JetStream KV bucket, the default one. What is emitted
// and the done mark are two writes (see the package's non-guarantees).
type KV struct {
	*engine
	kv *kvStore
}

var _ Ledger = (*KV)(nil)

// NewKV returns a ledger with marks in cfg.Bucket. It does no I/O. The error
// matches [ErrConfig].
func NewKV(b *bus.Bus, cfg Config) (*KV, error) {
	retention, err := retentionOf(cfg.Retention)
	if err != nil {
		return nil, err
	}
	cfg.Logger = b.LoggerOr(cfg.Logger)
	if cfg.Bucket == "" {
		cfg.Bucket = DefaultBucket
	}
	bucket := b.Names().Bucket(cfg.Bucket)
	s := &kvStore{
		markStream: markStream{bus: b, stream: "KV_" + bucket, name: bucket, none: ErrNoBucket, clock: b.Clock("KV_" + bucket), log: cfg.Logger},
		retention:  retention,
		subject:    "$KV." + bucket + ".",
		put:        b.PutSubject(bucket, ""),
		lifetime:   lifetimeOf(retention),
	}
	return &KV{engine: newEngine(s, retention, time.Now, cfg.Logger), kv: s}, nil
}

// Prepare checks that the ledger can keep its promise: the bucket exists and
// keeps each mark for the lifetime it was given, and the retention covers
// horizon, the longest time over which an event can be retried. Errors match
// [ErrNoBucket] or [ErrConfig] and say what to do, or [bus.ErrUnavailable].
func (l *KV) Prepare(ctx context.Context, horizon time.Duration) error {
	if err := checkHorizon(l.kv.retention, horizon); err != nil {
		return err
	}
	stream, err := l.kv.open(ctx)
	if err != nil {
		return fmt.Errorf("dedup: prepare: %w", err)
	}
	return l.kv.check(stream.CachedInfo().Config)
}

// kvStore is a store in a KV bucket. Writes are plain JetStream publishes with
// the headers of the KV protocol, so that thousands of them share the
// connection's publish window; reads are direct gets.
type kvStore struct {
	markStream
	retention time.Duration
	subject   string    // of marks as they are stored, up to the key
	put       string    // of marks as they are published, up to the key
	lifetime  string    // the Nats-TTL of a mark that ends
	spare     sync.Pool // of *message
}

func (s *kvStore) write(ctx context.Context, _ *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	set, rest, cancelled := apart(s.bus.Names(), out)
	if len(set) > 0 {
		rest = append(set, rest...)
	}
	if err := publish(ctx, s.bus, rest); err != nil {
		return 0, err
	}
	m, err := s.message(s.put+key, after, r)
	if err != nil {
		return 0, err
	}
	revision, err := publishMark(ctx, s.bus, &m.Msg)
	if err != nil {
		return 0, s.missing(err)
	}
	s.spare.Put(m)
	s.cancel(ctx, cancelled)
	return revision, nil
}

// message is a mark on its way. Two of them an event are a good part of what
// the event leaves to the garbage collector, so they are used again.
type message struct {
	nats.Msg
	after, lifetime [1]string // values of the header
}

func (s *kvStore) message(subject string, after uint64, r record) (*message, error) {
	m, ok := s.spare.Get().(*message)
	if !ok {
		m = new(message)
		m.Header = nats.Header{jetstream.ExpectedLastSubjSeqHeader: m.after[:], jetstream.MsgTTLHeader: m.lifetime[:]}
	}
	var err error
	if m.Data, err = r.encode(m.Data[:0]); err != nil {
		return nil, err
	}
	m.Subject = subject
	m.after[0] = strconv.FormatUint(after, 10)
	m.lifetime[0] = s.lifetime
	if r.kept() {
		m.lifetime[0] = "never" // whatever the bucket's own age limit
	}
	return m, nil
}

func (s *kvStore) read(ctx context.Context, key string) (entry, error) {
	return s.entry(ctx, s.subject+key)
}

// check refuses settings under which marks would end too early or come back.
func (s *kvStore) check(cfg jetstream.StreamConfig) error {
	var why string
	switch {
	case !cfg.AllowMsgTTL:
		why = "does not allow a lifetime for each key"
	case cfg.MaxMsgsPerSubject != 1:
		why = fmt.Sprintf("keeps a history of %d: an old mark would come back when the new one ends", cfg.MaxMsgsPerSubject)
	case cfg.Discard != jetstream.DiscardNew && (cfg.MaxMsgs > 0 || cfg.MaxBytes > 0):
		why = "drops its oldest marks when it is full"
	case cfg.MaxAge > 0 && cfg.MaxAge < s.retention:
		why = fmt.Sprintf("drops marks after %v, before the Retention of %v", cfg.MaxAge, s.retention)
	default:
		return nil
	}
	return fmt.Errorf("%w %q %s: run `farandole topology apply`", ErrNoBucket, s.name, why)
}
