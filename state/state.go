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

// Store reads and changes the documents of one consumer that hold a T as JSON. It is
// safe for concurrent use.
type Store[T any] struct {
	bus      *bus.Bus
	ledger   Ledger
	consumer event.Consumer
	seeds    seeds
}

// Ledger is a ledger that stores documents with a step: [dedup.Partitions].
type Ledger interface {
	Document(ctx context.Context, subject string) (dedup.Document, error)
	Committed(ctx context.Context, subject string) (dedup.Document, error)
	Confirm(ctx context.Context, reads []*nats.Msg) error
}

var _ Ledger = (*dedup.Partitions)(nil)

// Of returns the store of a consumer. l must be the same value that the consumer has
// as its Config.Ledger. Several stores may share it if their keys differ. Of does
// no I/O. The error matches [event.ErrInvalidConsumer].
func Of[T any](b *bus.Bus, l Ledger, c event.Consumer) (*Store[T], error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return &Store[T]{bus: b, ledger: l, consumer: c}, nil
}

// Document is one document as it was read.
type Document[T any] struct {
	// Value is the zero T when the document does not exist.
	Value  T
	Exists bool

	subject string
	version dedup.Version
	ledger  Ledger
}

// Change changes one document. A handler returns it in its step, and it is stored
// with the step or not at all.
type Change struct {
	ledger  Ledger
	subject string
	message *nats.Msg
	err     error
}

// Get reads a document in a handler. ctx must be the handler's context. The document
// may include changes of this process that are not committed yet. It may lack recent
// changes of other processes, if the stream has replicas. The result of the handler,
// a step or an error, is kept only if the document was committed and current.
// Otherwise the handler runs again.
//
// The error matches [ErrDecode] if the stored document is not a T, [ErrLost] if a
// seeded document is gone, else [bus.ErrUnavailable], [bus.ErrClosed] or
// [dedup.ErrNoStream].
func (s *Store[T]) Get(ctx context.Context, key event.Key) (Document[T], error) {
	d, err := s.read(ctx, key, s.ledger.Document)
	if err == nil && !d.Exists && s.seeds.has(key) {
		err = s.exists(ctx, key) // nil if only a replica lags behind: then the step is stale and runs again
	}
	if d.ledger != nil {
		note(ctx, read{d.ledger, d.subject, d.version})
	}
	return d, err
}

// Committed reads a document outside of a handler. It sees committed changes only. If
// the stream has replicas it may lack the latest ones. Errors are those of Get.
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

// Put returns the change that stores value as JSON.
func (d Document[T]) Put(value T) Change {
	data, err := json.Marshal(value)
	if err != nil {
		return Change{err: fmt.Errorf("state: %s: %w", d.subject, err)}
	}
	return Change{ledger: d.ledger, subject: d.subject, message: dedup.PutDocument(d.subject, data, d.version)}
}

// Delete returns the change that deletes the document.
func (d Document[T]) Delete() Change {
	return Change{ledger: d.ledger, subject: d.subject, message: dedup.DeleteDocument(d.subject, d.version)}
}

// Create stores a new document outside of a handler, as initial data. The error
// matches [bus.ErrConflict] if the document exists already. Other errors are those
// of [bus.Bus.Send] and [bus.Pending.Wait].
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

// Each calls f for every document of the consumer, the one that was changed longest
// ago first. token is the document's key as [event.EscapeKey] writes it, such as
// "sku-caf=C3=A9". A document that changes meanwhile may come twice. Each stops at
// a document that is not a T, with an error matching [ErrDecode]. Other errors are
// those of [bus.Bus.Scan] and of f.
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

// Messages returns the messages that store a step's changes, followed by those that
// check what its handler has read besides. l is the consumer's ledger. The error
// matches [ErrChange].
func Messages(l dedup.Ledger, changes []Change, reads *Reads) ([]*nats.Msg, error) {
	msgs := make([]*nats.Msg, 0, len(changes))
	seen := map[string]bool{}
	var errs []error
	for _, c := range changes {
		switch {
		case c.err != nil:
			errs = append(errs, fmt.Errorf("%w: %w", ErrChange, c.err))
		case c.message == nil:
			errs = append(errs, fmt.Errorf("%w: it was not made with Document.Put or Document.Delete", ErrChange))
		case any(c.ledger) != l:
			errs = append(errs, fmt.Errorf("%w: %s: the consumer's ledger is not the one that its store was made with: pass one ledger to both", ErrChange, c.subject))
		case seen[c.subject]:
			errs = append(errs, fmt.Errorf("%w: %s: changed twice in one step", ErrChange, c.subject))
		}
		seen[c.subject] = true
		msgs = append(msgs, c.message)
	}
	return append(msgs, reads.keep(l, seen)...), errors.Join(errs...)
}
