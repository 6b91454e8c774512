package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// seeds are the keys of the documents that this process has seeded. Such a document
// is stored once and never deleted, so it has to exist. The bucket
// [event.StateBucket] records each seed, because it outlives the event stream.
type seeds struct {
	mu   sync.Mutex
	keys map[event.Key]bool
}

// seed is the bucket's record of one document, under "<consumer>_<key>", such as
// "inventory_sku-widget".
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

// Seed stores a document that has to exist from then on. If any process has seeded it
// before, Seed stores nothing: it checks that the document exists, and returns an
// error matching [ErrLost] if not. After a Seed, [Store.Get] and [Store.Check] of
// this Store return that error, too, when the document is gone. [Store.Create]
// stores it again. Other errors are those of Create, [bus.OpenBucket] and
// [bus.Bucket.Put].
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

// Check returns an error matching [ErrLost] if a document is gone that was seeded with
// this Store, and nil if none is. Other errors match [bus.ErrUnavailable] or
// [bus.ErrClosed].
func (s *Store[T]) Check(ctx context.Context) error {
	for _, key := range s.seeds.all() {
		if err := s.exists(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// exists returns nil if the stream's leader has the document, else an error matching
// [ErrLost]. It asks the leader because a replica may lag behind.
func (s *Store[T]) exists(ctx context.Context, key event.Key) error {
	m, err := s.bus.Latest(ctx, s.bus.Names().EventsStream(), s.subject(key))
	switch {
	case err != nil:
		return fmt.Errorf("state: %w", err)
	case m == nil:
		return fmt.Errorf("%w (%w): %s was stored before and is no longer in stream %s", ErrLost, bus.ErrUnavailable, s.subject(key), s.bus.Names().EventsStream())
	}
	return nil
}
