package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Store is the typed documents of one consumer. It is safe for concurrent use.
type Store[T any] struct {
	bus      *bus.Bus
	ledger   *dedup.Stream
	consumer event.Consumer
	seeds    seeds
}

// Of returns the documents of a consumer whose ledger is l. The consumer must
// use this very ledger; several stores may share it, as long as their keys
// differ. Of does no I/O. The error matches [event.ErrInvalidConsumer].
func Of[T any](b *bus.Bus, l *dedup.Stream, c event.Consumer) (*Store[T], error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return &Store[T]{bus: b, ledger: l, consumer: c}, nil
}

// Document is one document as a handler sees it.
type Document[T any] struct {
	// Value is the zero T when there is none.
	Value  T
	Exists bool

	subject string
	version dedup.Version
	ledger  *dedup.Stream
}

// Change is what a step does to one document. It becomes durable with the
// step, or not at all.
type Change struct {
	ledger  *dedup.Stream
	subject string
	message *nats.Msg
	err     error
}

// Get reads a document in a handler, with the handler's context: as the steps
// before it leave it, also those that are not committed yet, and with replicas
// perhaps as it was before others changed it. Whatever the handler makes of it,
// a step, an error, or nothing, is kept only if the document was committed and
// current like this; else the handler runs again. Errors match [ErrDecode] when
// what is stored is not a T, [ErrLost] for a seeded document that is gone, else [bus.ErrUnavailable], [bus.ErrClosed] or
// [dedup.ErrNoStream].
func (s *Store[T]) Get(ctx context.Context, key event.Key) (Document[T], error) {
	d, err := s.read(ctx, key, s.ledger.Document)
	if err == nil && !d.Exists && s.seeds.has(key) {
		err = s.exists(ctx, key) // or a copy of the stream lags behind: then the step will be stale
	}
	if d.ledger != nil {
		note(ctx, read{d.ledger, d.subject, d.version})
	}
	return d, err
}

// Committed reads a document for anybody but a step: as it is durable. With
// replicas it may lag behind the latest change. Errors are those of Get.
func (s *Store[T]) Committed(ctx context.Context, key event.Key) (Document[T], error) {
	return s.read(ctx, key, s.ledger.Committed)
}

func (s *Store[T]) read(ctx context.Context, key event.Key, read func(context.Context, string) (dedup.Document, error)) (Document[T], error) {
	subject := s.subject(key)
	stored, err := read(ctx, subject)
	if err != nil {
		return Document[T]{}, fmt.Errorf("state: %w", err)
	}
	d := Document[T]{Exists: stored.Exists, subject: subject, version: stored.Version, ledger: s.ledger}
	if d.Exists {
		if err := json.Unmarshal(stored.Data, &d.Value); err != nil {
			return d, fmt.Errorf("%w: %s: %w", ErrDecode, subject, err)
		}
	}
	return d, nil
}

// Put is the change that stores value, as JSON.
func (d Document[T]) Put(value T) Change {
	data, err := json.Marshal(value)
	if err != nil {
		return Change{err: fmt.Errorf("state: %s: %w", d.subject, err)}
	}
	return Change{ledger: d.ledger, subject: d.subject, message: dedup.PutDocument(d.subject, data, d.version)}
}

// Delete is the change that removes the document.
func (d Document[T]) Delete() Change {
	return Change{ledger: d.ledger, subject: d.subject, message: dedup.DeleteDocument(d.subject, d.version)}
}

// Create stores a document outside of any step, to begin with. The error
// matches [bus.ErrConflict] when there is one already, else those of
// [bus.Bus.Send] and [bus.Pending.Wait].
func (s *Store[T]) Create(ctx context.Context, key event.Key, value T) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("state: %s: %w", key, err)
	}
	pending, err := s.bus.Send(ctx, &nats.Msg{
		Subject: s.subject(key), Data: data,
		Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}, jetstream.MsgTTLHeader: {"never"}},
	})
	if err != nil {
		return fmt.Errorf("state: create %s: %w", key, err)
	}
	if _, err := pending.Wait(ctx); err != nil {
		return fmt.Errorf("state: create %s: %w", key, err)
	}
	return nil
}

// Each calls f for every document, oldest change first. token is the key as
// [event.EscapeKey] writes it. A document that changes meanwhile may be seen
// twice. Those that are not a T end it with an error matching [ErrDecode];
// others are those of [bus.Bus.Scan] and of f.
func (s *Store[T]) Each(ctx context.Context, f func(token string, value T) error) error {
	names := s.bus.Names()
	root := strings.TrimSuffix(names.StateFilter(s.consumer), ">")
	return s.bus.Scan(ctx, names.EventsStream(), root+">", func(subject string, _ uint64, data []byte) error {
		var value T
		if err := json.Unmarshal(data, &value); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDecode, subject, err)
		}
		return f(strings.TrimPrefix(subject, root), value)
	})
}

func (s *Store[T]) subject(key event.Key) string {
	return s.bus.Names().StateSubject(s.consumer, key)
}

// Messages returns what a step's changes become, and what its handler has read
// besides, for the ledger that the consumer uses. Errors match [ErrChange]: the
// changes can never be stored.
func Messages(l dedup.Ledger, changes []Change, reads *Reads) ([]*nats.Msg, error) {
	msgs := make([]*nats.Msg, 0, len(changes))
	seen := map[string]bool{}
	var errs []error
	for _, c := range changes {
		switch {
		case c.err != nil:
			errs = append(errs, fmt.Errorf("%w: %w", ErrChange, c.err))
		case c.message == nil:
			errs = append(errs, fmt.Errorf("%w: it was not made by a Document", ErrChange))
		case dedup.Ledger(c.ledger) != l:
			errs = append(errs, fmt.Errorf("%w: %s: the consumer has another ledger than its store", ErrChange, c.subject))
		case seen[c.subject]:
			errs = append(errs, fmt.Errorf("%w: %s: changed twice in one step", ErrChange, c.subject))
		}
		seen[c.subject] = true
		msgs = append(msgs, c.message)
	}
	return append(msgs, reads.keep(l, seen)...), errors.Join(errs...)
}
