package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// seeds are the documents of a store that have to exist: they were stored once
// and are never deleted. That they were is remembered in [event.StateBucket],
// which does not go with the event stream.
type seeds struct {
	mu   sync.Mutex
	keys map[event.Key]bool
}

// seed is what the bucket holds of one, under "<consumer>_<key>".
type seed struct {
	Subject string `json:"subject"`
}

func (s *seeds) add(k event.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[event.Key]bool{}
	}
	s.keys[k] = true
}

func (s *seeds) has(k event.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[k]
}

func (s *seeds) all() []event.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]event.Key, 0, len(s.keys))
	for k := range s.keys {
		keys = append(keys, k)
	}
	return keys
}

// Seed stores a document that is there from then on: the first time, and never
// again. A later Seed of it, also in another process, returns an error matching
// [ErrLost] if it is gone, and so do [Store.Get] and [Store.Check] in this
// process. If that is meant, [Store.Create] makes it anew. Other errors are
// those of Create, [bus.OpenBucket] and [bus.Bucket.Put].
func (s *Store[T]) Seed(ctx context.Context, key event.Key, value T) error {
	bucket, err := bus.OpenBucket[seed](ctx, s.bus, event.StateBucket)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	name := event.Key(s.consumer) + "_" + key
	_, revision, err := bucket.Get(ctx, name)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	s.seeds.add(key)
	if revision > 0 {
		return s.exists(ctx, key)
	}
	if err := s.Create(ctx, key, value); err != nil && !errors.Is(err, bus.ErrConflict) {
		return err
	}
	if _, err := bucket.Put(ctx, name, seed{Subject: s.subject(key)}, 0); err != nil && !errors.Is(err, bus.ErrConflict) {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// Check returns nil while all documents are there that this process has seeded,
// else an error matching [ErrLost]. Others match [bus.ErrUnavailable] or [bus.ErrClosed].
func (s *Store[T]) Check(ctx context.Context) error {
	for _, key := range s.seeds.all() {
		if err := s.exists(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// exists asks the stream's leader for a document that has to be there.
func (s *Store[T]) exists(ctx context.Context, key event.Key) error {
	m, err := s.bus.Latest(ctx, s.bus.Names().EventsStream(), s.subject(key))
	switch {
	case err != nil:
		return fmt.Errorf("state: %w", err)
	case m == nil:
		return fmt.Errorf("%w (%w): %s was stored once and is not in stream %s", ErrLost, bus.ErrUnavailable, s.subject(key), s.bus.Names().EventsStream())
	}
	return nil
}
