package pauses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
)

// Store is the bucket of documents. It is safe for concurrent use.
type Store struct {
	bus   *bus.Bus
	clock *bus.Clock

	mu     sync.Mutex
	bucket *bus.Bucket[Document] // nil until it was open once
}

const (
	// againAfter is when a watch that has ended is begun anew, on average.
	againAfter = 250 * time.Millisecond
	// missingAfter is the same while the bucket is missing, or denied.
	missingAfter = 5 * time.Second
	// conflictAfter is when a change is tried again that met another one, on average.
	conflictAfter = 5 * time.Millisecond
)

// New does no I/O.
func New(b *bus.Bus) *Store {
	return &Store{bus: b, clock: b.Clock("KV_" + b.Names().Bucket(event.PausesBucket))}
}

// Now is the server's time. Errors are those of [bus.Clock.Now].
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	t, err := s.clock.Now(ctx)
	if errors.Is(err, bus.ErrNoStream) {
		err = fmt.Errorf("%w: run `farandole topology apply`", err)
	}
	return t, err
}

func (s *Store) open(ctx context.Context) (*bus.Bucket[Document], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bucket != nil {
		return s.bucket, nil
	}
	bucket, err := bus.OpenBucket[Document](ctx, s.bus, event.PausesBucket)
	if err != nil {
		return nil, err
	}
	s.bucket = bucket
	return bucket, nil
}

// Get returns the document of a consumer, the zero one if there is none. Errors
// match [bus.ErrNoStream] if there is no bucket, else they are those of [bus.Bucket.Get].
func (s *Store) Get(ctx context.Context, c event.Consumer) (Document, error) {
	bucket, err := s.open(ctx)
	if err != nil {
		return Document{}, err
	}
	d, _, err := bucket.Get(ctx, event.Key(c))
	return d, err
}

// Update changes the document of a consumer by compare-and-set. change may be called
// several times, with what is stored then; when it returns false nothing is written.
// Update returns the document as it is stored in the end. Errors are those of Get or
// of [bus.Bucket.Put].
func (s *Store) Update(ctx context.Context, c event.Consumer, change func(d *Document) bool) (Document, error) {
	bucket, err := s.open(ctx)
	if err != nil {
		return Document{}, err
	}
	for {
		d, revision, err := bucket.Get(ctx, event.Key(c))
		if err != nil {
			return Document{}, err
		}
		d.Breakers = maps.Clone(d.Breakers)
		if !change(&d) {
			return d, nil
		}
		_, err = bucket.Put(ctx, event.Key(c), d, revision)
		if errors.Is(err, bus.ErrConflict) && backoff.Wait(ctx, backoff.Around(conflictAfter)) {
			continue // a replica of the bucket lags, or somebody else was faster
		}
		return d, err
	}
}

// Each calls f for the document of every consumer. Errors are those of [bus.Bucket.Each].
func (s *Store) Each(ctx context.Context, f func(c event.Consumer, d Document) error) error {
	bucket, err := s.open(ctx)
	if err != nil {
		return err
	}
	return bucket.Each(ctx, func(token string, d Document, _ uint64) error { return f(event.Consumer(token), d) })
}

// Followers counts the processes that follow the document of each consumer: its own, paused
// or not. Errors match [bus.ErrNoStream] if there is no bucket, else they are those of [bus.Bucket.Watchers].
func (s *Store) Followers(ctx context.Context) (map[event.Consumer]int, error) {
	bucket, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := bucket.Watchers(ctx)
	followers := make(map[event.Consumer]int, len(counts))
	for token, n := range counts {
		followers[event.Consumer(token)] = n
	}
	return followers, err
}

// Follow calls changed with the document of a consumer as it is, and after each change,
// until ctx ends. While it cannot follow, it calls failed each time it has tried; the
// next call of changed says that it can again.
func (s *Store) Follow(ctx context.Context, c event.Consumer, changed func(Document), failed func(error)) {
	for {
		bucket, err := s.open(ctx)
		if err == nil {
			err = bucket.Watch(ctx, event.Key(c), func(d Document, _ uint64) { changed(d) })
		}
		if ctx.Err() != nil {
			return
		}
		failed(fmt.Errorf("pauses: %w", err))
		again := againAfter
		if errors.Is(err, bus.ErrNoStream) || errors.Is(err, bus.ErrDenied) {
			again = missingAfter
		}
		if !backoff.Wait(ctx, backoff.Around(again)) {
			return
		}
	}
}
