package dedup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
)

// markStream is the stream in which a store keeps its marks.
type markStream struct {
	bus    *bus.Bus
	stream string
	name   string     // what people call it: of a bucket's stream the bucket
	none   error      // what its absence matches
	clock  *bus.Clock // of the stream's leader, which stamps what it stores
	opened atomic.Pointer[jetstream.Stream]
	log    zerolog.Logger
}

// cancel ends the timers that a step cancels, once it is stored.
func (s *markStream) cancel(ctx context.Context, cancelled []*nats.Msg) {
	if err := publish(ctx, s.bus, cancelled); err != nil {
		s.log.Warn().Err(err).Int("timers", len(cancelled)).Msg("timers not cancelled: should they fire, whoever handles their events finds them stale")
	}
}

func (s *markStream) now(ctx context.Context) (time.Time, error) {
	t, err := s.clock.Now(ctx)
	return t, s.missing(err)
}

// open asks for the stream's settings and state.
func (s *markStream) open(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.bus.Stream(ctx, s.stream)
	if err != nil {
		return nil, s.missing(err)
	}
	s.opened.CompareAndSwap(nil, &stream)
	return stream, nil
}

// last returns the latest message on a subject, nil if there is none. The replica
// that answers may lag behind.
func (s *markStream) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	stream := s.opened.Load()
	if stream == nil {
		opened, err := s.open(ctx)
		if err != nil {
			return nil, err
		}
		stream = &opened
	}
	m, err := s.bus.Read(ctx, *stream, subject)
	return m, s.missing(err)
}

// latest is last, asked of the stream's leader, which does not lag behind.
func (s *markStream) latest(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := s.bus.Latest(ctx, s.stream, subject)
	return m, s.missing(err)
}

// entry reads the mark on a subject. The replica that answers may lag behind.
func (s *markStream) entry(ctx context.Context, subject string) (entry, error) {
	m, err := s.last(ctx, subject)
	if err != nil {
		return entry{}, err
	}
	return entryOf(m)
}

// entryOf reads a mark from its message, nil for none.
func entryOf(m *jetstream.RawStreamMsg) (entry, error) {
	switch {
	case m == nil:
		return entry{}, nil
	case isMarker(m.Header):
		return entry{revision: m.Sequence}, nil
	}
	r, err := decodeRecord(m.Data)
	if err != nil {
		return entry{}, err
	}
	return entry{revision: m.Sequence, record: r, created: m.Time}, nil
}

// isMarker reports whether a message stands for a mark that was deleted (by
// hand) or has expired.
func isMarker(h nats.Header) bool {
	if h.Get(jetstream.MarkerReasonHeader) != "" {
		return true
	}
	op := h.Get(headerOperation)
	return op == operationDelete || op == "PURGE"
}

// lifetimeOf is the Nats-TTL of a mark that ends, in whole seconds, never shorter
// than asked for.
func lifetimeOf(retention time.Duration) string {
	return strconv.FormatInt(int64((retention+time.Second-1)/time.Second), 10)
}

func sequenceOf(m *jetstream.RawStreamMsg) uint64 {
	if m == nil {
		return 0
	}
	return m.Sequence
}

// missing gives an error that tells of no stream this store's error for it.
func (s *markStream) missing(err error) error {
	if errors.Is(err, bus.ErrNoStream) {
		return fmt.Errorf("%w: %w", s.absent(), err)
	}
	return err
}

func (s *markStream) absent() error {
	return fmt.Errorf("%w %q does not exist: run `farandole topology apply`", s.none, s.name)
}
