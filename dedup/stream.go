package dedup

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
)

// StreamConfig are the choices of [NewStream].
type StreamConfig struct {
	// Retention is how long an event is remembered after its last change:
	// how late a copy of it may come and still be recognised. At least one
	// second; a fraction of a second is rounded up. Defaults to 24 h.
	Retention time.Duration
	// Claims makes a worker claim an event before its handler runs, as [KV]
	// does: for handlers with effects outside NATS, at the price of one more
	// write an event. Without it two workers that get copies of one event at
	// the same time may both run the handler; what one of them returns takes
	// effect. Defaults to false.
	Claims bool
	// Logger logs takeovers of claims whose worker died. Defaults to silence.
	Logger zerolog.Logger
}

// Stream is the ledger in the event stream (ADR 0003). A done mark, the
// outgoing messages and the documents of a step become durable in one atomic
// batch; steps that are ready at the same time share one.
type Stream struct {
	*engine
	documents
}

// Health is that of the documents.
func (l *Stream) Health() error { return l.documents.Health() }

var _ Ledger = (*Stream)(nil)

// NewStream returns a ledger with marks in b's event stream. It does no I/O.
// The error matches [ErrConfig].
func NewStream(b *bus.Bus, cfg StreamConfig) (*Stream, error) {
	retention, err := retentionOf(cfg.Retention)
	if err != nil {
		return nil, err
	}
	s := newStreamStore(b, retention, cfg.Logger)
	e := newEngine(s, retention, time.Now, cfg.Logger)
	e.claimless = !cfg.Claims
	return &Stream{engine: e, documents: documents{s}}, nil
}

func newStreamStore(b *bus.Bus, retention time.Duration, log zerolog.Logger) *streamStore {
	s := &streamStore{
		markStream: markStream{bus: b, stream: b.Names().EventsStream(), name: b.Names().EventsStream(), none: ErrNoStream, clock: b.Clock(b.Names().EventsStream()), log: log},
		prefix:     b.Names().Root("ledger."),
		retention:  retention,
		unwritten:  []string{"0"},
		lifetime:   []string{lifetimeOf(retention)},
	}
	s.group = newGroup(b, s)
	return s
}

// Prepare checks that the ledger can keep its promise: the server and the
// event stream take atomic batches and keep each mark for the lifetime it was
// given, and the retention covers horizon, the longest time over which an
// event can be retried. Errors match [ErrNoStream] or [ErrConfig] and say what
// to do, or [bus.ErrUnavailable].
func (l *Stream) Prepare(ctx context.Context, horizon time.Duration) error {
	if err := checkHorizon(l.marks.retention, horizon); err != nil {
		return err
	}
	stream, err := l.marks.open(ctx)
	if err != nil {
		return fmt.Errorf("dedup: prepare: %w", err)
	}
	return l.marks.check(stream.CachedInfo().Config)
}

// batchesSince is the first server version with atomic batches; older ones
// ignore the setting of the stream.
const batchesSince = "2.12"

// streamStore is a store in the event stream: a mark is the last message on
// ledger.<consumer>.<event key>; what it replaces is tidied away. A done mark goes the way of the group, in one
// atomic batch with what it stands for; all other marks are published alone.
type streamStore struct {
	markStream
	prefix    string // of marks' subjects
	retention time.Duration
	unwritten []string // the expected sequence of a new mark, shared by all
	lifetime  []string // the Nats-TTL of a mark that ends, likewise
	group     *group
}

func (s *streamStore) write(ctx context.Context, _ *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	mark, err := s.mark(key, after, r)
	if err != nil {
		return 0, err
	}
	// No batch can span streams. What belongs to another one is stored first. A
	// dead letter: a crash between the two leaves the event to be parked again,
	// under the letter's own message id. A retry put off: it is put off again.
	if r.State != stateDone {
		if err := publish(ctx, s.bus, out); err != nil {
			return 0, err
		}
		revision, err := publishMark(ctx, s.bus, mark)
		if err == nil && after > 0 {
			s.tidy(mark.Subject)
		}
		return revision, s.missing(err)
	}
	set, rest, cancelled := apart(s.bus.Names(), out)
	if err := publish(ctx, s.bus, set); err != nil {
		return 0, err
	}
	revision, err := s.group.commit(ctx, newStep(mark, after, rest))
	if err != nil {
		return 0, s.missing(err)
	}
	s.cancel(ctx, cancelled)
	return revision, nil
}

func (s *streamStore) mark(key string, after uint64, r record) (*nats.Msg, error) {
	data, err := r.encode(nil)
	if err != nil {
		return nil, err
	}
	m := &nats.Msg{
		Subject: s.prefix + key,
		Header:  nats.Header{jetstream.ExpectedLastSubjSeqHeader: s.unwritten, jetstream.MsgTTLHeader: s.lifetime},
		Data:    data,
	}
	if after > 0 {
		m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(after, 10)}
	}
	if r.kept() {
		m.Header[jetstream.MsgTTLHeader] = []string{"never"} // whatever the stream's own age limit
	}
	return m, nil
}

func (s *streamStore) read(ctx context.Context, key string) (entry, error) {
	return s.entry(ctx, s.prefix+key)
}

// check refuses settings under which steps cannot be committed, or marks would
// end too early.
func (s *streamStore) check(cfg jetstream.StreamConfig) error {
	var why string
	switch {
	case !cfg.AllowAtomicPublish:
		return fmt.Errorf("%w %q does not allow atomic batches: run `farandole topology apply`, or use the KV ledger; nats-server %s or later is needed, this is %s",
			ErrNoStream, s.name, batchesSince, s.bus.Conn().ConnectedServerVersion())
	case !cfg.AllowMsgTTL:
		why = "does not allow a lifetime for each message"
	case !cfg.AllowDirect:
		why = "does not allow direct reads"
	case cfg.Discard == jetstream.DiscardOld && (cfg.MaxMsgs > 0 || cfg.MaxBytes > 0):
		return fmt.Errorf("%w %q drops its oldest messages when it is full, marks among them: remove its limit of messages or bytes, or use the KV ledger", ErrNoStream, s.name)
	case cfg.MaxAge > 0 && cfg.MaxAge < s.retention:
		return fmt.Errorf("%w %q drops marks after %v, before the Retention of %v: make it keep events longer, or shorten the Retention", ErrNoStream, s.name, cfg.MaxAge, s.retention)
	default:
		return nil
	}
	return fmt.Errorf("%w %q %s: run `farandole topology apply`", ErrNoStream, s.name, why)
}
