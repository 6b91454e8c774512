package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bucket is a small typed store: one JSON document a key in a KV bucket, with
// optimistic concurrency. Services keep their state in one. It is safe for
// concurrent use.
type Bucket[T any] struct {
	bus    *Bus
	name   string
	stream jetstream.Stream
}

// OpenBucket opens an existing bucket of this system by its short name, as in
// "orders". It returns an error matching [ErrNoStream] if it does not exist.
func OpenBucket[T any](ctx context.Context, b *Bus, name string) (*Bucket[T], error) {
	full := b.Names().Bucket(name)
	stream, err := b.js.Stream(ctx, "KV_"+full)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("bus: bucket %s: %w: run `farandole topology apply`", full, ErrNoStream)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: bucket %s: %w: %w", full, ErrUnavailable, err)
	}
	return &Bucket[T]{bus: b, name: full, stream: stream}, nil
}

// Get returns the document under key and its revision; revision 0 means that
// there is none. With replicas it may lag behind the latest [Bucket.Put], which
// then reports the conflict. Errors match [ErrUnavailable], or [ErrDecode] when
// what is stored is not a T.
func (k *Bucket[T]) Get(ctx context.Context, key Key) (value T, revision uint64, err error) {
	m, err := k.stream.GetLastMsgForSubject(ctx, k.subject(key))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return value, 0, nil
	case err != nil:
		return value, 0, fmt.Errorf("bus: bucket %s: get %s: %w: %w", k.name, key, ErrUnavailable, err)
	case m.Header.Get("KV-Operation") != "": // deleted by hand
		return value, m.Sequence, nil
	}
	if err := json.Unmarshal(m.Data, &value); err != nil {
		return value, 0, fmt.Errorf("bus: bucket %s: get %s: %w: %w", k.name, key, ErrDecode, err)
	}
	return value, m.Sequence, nil
}

// Put stores value under key if the document is still at revision (0: there is
// none) and returns the new revision. It returns an error matching
// [ErrConflict] if somebody else wrote it first, and the errors of
// [Pending.Wait]; after [ErrUnavailable] it is not known whether it was stored.
func (k *Bucket[T]) Put(ctx context.Context, key Key, value T, revision uint64) (uint64, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return 0, fmt.Errorf("bus: bucket %s: put %s: %w: %w", k.name, key, ErrInvalidEvent, err)
	}
	pending, err := k.bus.Send(ctx, &nats.Msg{
		Subject: k.subject(key),
		Header:  nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(revision, 10)}},
		Data:    data,
	})
	if err != nil {
		return 0, fmt.Errorf("bus: bucket %s: put %s: %w", k.name, key, err)
	}
	receipt, err := pending.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("bus: bucket %s: put %s: %w", k.name, key, err)
	}
	return receipt.Sequence, nil
}

// Each calls f for every document, in no particular order, until f returns an
// error, which it returns. token is the key as it is written in the subject
// ([EscapeKey]). What is written meanwhile may or may not be seen.
func (k *Bucket[T]) Each(ctx context.Context, f func(token string, value T, revision uint64) error) error {
	kv, err := k.bus.js.KeyValue(ctx, k.name)
	if err != nil {
		return fmt.Errorf("bus: bucket %s: %w: %w", k.name, ErrUnavailable, err)
	}
	watch, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return fmt.Errorf("bus: bucket %s: scan: %w: %w", k.name, ErrUnavailable, err)
	}
	defer func() { _ = watch.Stop() }() // the scan's result stands
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("bus: bucket %s: scan: %w", k.name, context.Cause(ctx))
		case entry := <-watch.Updates():
			if entry == nil { // all that was there has been seen
				return nil
			}
			var value T
			if err := json.Unmarshal(entry.Value(), &value); err != nil {
				return fmt.Errorf("bus: bucket %s: %s: %w: %w", k.name, entry.Key(), ErrDecode, err)
			}
			if err := f(entry.Key(), value, entry.Revision()); err != nil {
				return err
			}
		}
	}
}

func (k *Bucket[T]) subject(key Key) string {
	return "$KV." + k.name + "." + EscapeKey(key)
}
