package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
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
// "orders". While it has no leader OpenBucket waits, see [Bus.Await]. It returns
// an error matching [ErrNoStream] if it does not exist, else [ErrDenied],
// [ErrUnavailable] or [ErrClosed].
func OpenBucket[T any](ctx context.Context, b *Bus, name string) (*Bucket[T], error) {
	k := &Bucket[T]{bus: b, name: b.Names().Bucket(name)}
	err := b.Await(ctx, func(ctx context.Context) (err error) {
		k.stream, err = b.Stream(ctx, "KV_"+k.name)
		return err
	})
	if errors.Is(err, ErrNoStream) {
		return nil, fmt.Errorf("%w: run `farandole topology apply`", err)
	}
	return k, err
}

// Get returns the document under key and its revision; revision 0 means that
// there is none. With replicas it may lag behind the latest [Bucket.Put], which
// then reports the conflict. Errors match [event.ErrDecode] when what is stored is not
// a T, else [ErrDenied], [ErrUnavailable] or [ErrClosed].
func (k *Bucket[T]) Get(ctx context.Context, key event.Key) (value T, revision uint64, err error) {
	subject := "$KV." + k.name + "." + event.EscapeKey(key)
	m, err := k.bus.Read(ctx, k.stream, subject)
	switch {
	case err != nil:
		return value, 0, fmt.Errorf("bus: bucket %s: get %s: %w", k.name, key, gone(err))
	case m == nil:
		return value, 0, nil
	case deletes(m.Header):
		return value, m.Sequence, nil
	}
	if err := json.Unmarshal(m.Data, &value); err != nil {
		return value, 0, fmt.Errorf("bus: bucket %s: get %s: %w: %w", k.name, key, event.ErrDecode, err)
	}
	return value, m.Sequence, nil
}

// Put stores value under key if the document is still at revision (0: there is
// none) and returns the new revision. It returns an error matching
// [ErrConflict] if somebody else wrote it first, and the errors of
// [Pending.Wait]; after [ErrUnavailable] it is not known whether it was stored.
func (k *Bucket[T]) Put(ctx context.Context, key event.Key, value T, revision uint64) (uint64, error) {
	return k.put(ctx, key, value, nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(revision, 10)}})
}

// PutFor is [Bucket.Put] for a document that the server removes after its lifetime, in
// whole seconds and at least one. The bucket has to allow that; those of package topology do.
func (k *Bucket[T]) PutFor(ctx context.Context, key event.Key, value T, revision uint64, lifetime time.Duration) (uint64, error) {
	return k.put(ctx, key, value, nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(revision, 10)},
		jetstream.MsgTTLHeader:              {strconv.FormatInt(max(1, int64(lifetime/time.Second)), 10)},
	})
}

func (k *Bucket[T]) put(ctx context.Context, key event.Key, value T, header nats.Header) (uint64, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return 0, fmt.Errorf("bus: bucket %s: put %s: %w: %w", k.name, key, event.ErrInvalidEvent, err)
	}
	pending, err := k.bus.Send(ctx, &nats.Msg{
		Subject: k.bus.PutSubject(k.name, event.EscapeKey(key)),
		Header:  header,
		Data:    data,
	})
	if err != nil {
		return 0, fmt.Errorf("bus: bucket %s: put %s: %w", k.name, key, gone(err))
	}
	receipt, err := pending.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("bus: bucket %s: put %s: %w", k.name, key, gone(err))
	}
	return receipt.Sequence, nil
}

// Each calls f for every document, the longest unchanged first, until f returns
// an error, which it returns. token is the key as it is written in the subject
// ([event.EscapeKey]). A document that is there all the time is seen; one that is
// written meanwhile, by f too, may be seen again. Each keeps at most 256
// documents in memory.
//
// Documents that are not a T are passed over, and told in the end by an error
// matching [event.ErrDecode]. When the connection is lost on the way the error matches
// [ErrUnavailable] or [ErrClosed]: a part is never told to be all. Others match
// [ErrDenied], or are ctx's cause.
func (k *Bucket[T]) Each(ctx context.Context, f func(token string, value T, revision uint64) error) error {
	var unreadable error
	root := "$KV." + k.name + "."
	err := k.bus.Scan(ctx, "KV_"+k.name, root+">", func(subject string, revision uint64, data []byte) error {
		token := strings.TrimPrefix(subject, root)
		var value T
		if err := json.Unmarshal(data, &value); err != nil {
			if unreadable == nil { // one is enough to start with, there may be many
				unreadable = fmt.Errorf("bus: bucket %s: %s: %w: %w", k.name, token, event.ErrDecode, err)
			}
			return nil
		}
		return f(token, value, revision)
	})
	if err != nil {
		return gone(err)
	}
	return unreadable
}

// gone makes an outage of a bucket that was there when it was opened and is not
// now: what it held must be, and somebody has to bring it back.
func gone(err error) error {
	if errors.Is(err, ErrNoStream) {
		return fmt.Errorf("%w: the bucket is gone: %w", ErrUnavailable, err)
	}
	return err
}
