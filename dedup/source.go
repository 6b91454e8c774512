package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
)

// source is the stream that a store reads its marks from.
type source struct {
	bus    *bus.Bus
	stream string
	// name is what people call it, and none matches its absence.
	name   string
	none   error
	clock  *bus.Clock // of the stream's leader, which stamps what it stores
	opened atomic.Pointer[jetstream.Stream]
	log    zerolog.Logger
}

// cancel ends timers of a step that is stored.
func (s *source) cancel(ctx context.Context, cancelled []*nats.Msg) {
	if err := publish(ctx, s.bus, cancelled); err != nil {
		s.log.Warn().Err(err).Int("timers", len(cancelled)).Msg("timers not cancelled: should they fire, whoever handles their events finds them stale")
	}
}

func (s *source) now(ctx context.Context) (time.Time, error) {
	t, err := s.clock.Now(ctx)
	return t, s.missing(err)
}

// open asks for the stream's settings and state.
func (s *source) open(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.bus.Stream(ctx, s.stream)
	if err != nil {
		return nil, s.missing(err)
	}
	s.opened.CompareAndSwap(nil, &stream)
	return stream, nil
}

// last returns the latest message on a subject, nil if there is none. It may
// lag behind.
func (s *source) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
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

// latest is last as the stream's leader has it, which does not lag behind.
func (s *source) latest(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := s.bus.Latest(ctx, s.stream, subject)
	return m, s.missing(err)
}

func sequenceOf(m *jetstream.RawStreamMsg) uint64 {
	if m == nil {
		return 0
	}
	return m.Sequence
}

// missing gives a call that met no stream this store's name for it.
func (s *source) missing(err error) error {
	if errors.Is(err, bus.ErrNoStream) {
		return fmt.Errorf("%w: %w", s.absent(), err)
	}
	return err
}

func (s *source) absent() error {
	return fmt.Errorf("%w %q does not exist: run `farandole topology apply`", s.none, s.name)
}
