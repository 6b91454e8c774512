package dedup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/farandole/farandole/bus"
)

// partitionStore is what a ledger by partition keeps in the event stream: pages,
// documents, and records of events with a story. A record is the last message on
// ledger.<consumer>.<partition>.<event key>. As a store it finds them for people,
// who name an event by its key and not by its partition.
type partitionStore struct {
	markStream
	prefix    string // of the subjects of records and pages
	retention time.Duration
	lifetime  string // the Nats-TTL of a record that ends
	group     *group
}

func newPartitionStore(b *bus.Bus, retention time.Duration, log zerolog.Logger) *partitionStore {
	name := b.Names().EventsStream()
	s := &partitionStore{
		markStream: markStream{bus: b, stream: name, name: name, none: ErrNoStream, clock: b.Clock(name), log: log},
		prefix:     b.Names().Root("ledger."),
		retention:  retention,
		lifetime:   lifetimeOf(retention),
	}
	s.group = newGroup(b, s)
	return s
}

// message is a record on its way: it follows the revision after, 0 for none.
func (s *partitionStore) message(subject string, after uint64, r record) (*nats.Msg, error) {
	data, err := r.encode(nil)
	if err != nil {
		return nil, err
	}
	lifetime := s.lifetime
	if r.kept() {
		lifetime = "never" // whatever the stream's own age limit
	}
	return &nats.Msg{Subject: subject, Data: data, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(after, 10)},
		jetstream.MsgTTLHeader:              {lifetime},
	}}, nil
}

func (s *partitionStore) read(ctx context.Context, key string) (entry, error) {
	m, err := s.find(ctx, key)
	if err != nil {
		return entry{}, err
	}
	return entryOf(m)
}

// write changes a record outside of any step.
func (s *partitionStore) write(ctx context.Context, _ *Claim, key string, after uint64, r record, _ []*nats.Msg) (uint64, error) {
	subject := s.prefix + key
	if m, err := s.find(ctx, key); err != nil {
		return 0, err
	} else if m != nil {
		subject = m.Subject
	}
	m, err := s.message(subject, after, r)
	if err != nil {
		return 0, err
	}
	revision, err := publishMark(ctx, s.bus, m)
	if err == nil && after > 0 {
		s.tidy(subject)
	}
	return revision, s.missing(err)
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
	return slices.MaxFunc(found, func(a, b *jetstream.RawStreamMsg) int { return cmp.Compare(a.Sequence, b.Sequence) }), nil
}

// batchesSince is the first server version with atomic batches; older ones
// ignore the setting of the stream.
const batchesSince = "2.12"

// check refuses settings under which steps cannot be committed, or records would
// end too early.
func (s *partitionStore) check(cfg jetstream.StreamConfig) error {
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
