package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// KV is a store in a KV bucket of JetStream. The server removes what is forgotten.
type KV struct {
	bucket *bus.Bucket[Record]
	clock  *bus.Clock
}

var _ Store = (*KV)(nil)

// OpenKV opens a store in a bucket, by its short name. Name the bucket in
// [topology.Config].Buckets, which makes it. Errors are those of [bus.OpenBucket].
//
// [topology.Config]: https://pkg.go.dev/github.com/farandole/farandole/topology#Config
func OpenKV(ctx context.Context, b *bus.Bus, bucket string) (*KV, error) {
	opened, err := bus.OpenBucket[Record](ctx, b, bucket)
	if err != nil {
		return nil, fmt.Errorf("idempotency: open bucket %s (topology.Config.Buckets has it made): %w", bucket, err)
	}
	return &KV{opened, b.Clock("KV_" + b.Names().Bucket(bucket))}, nil
}

// kvTries bounds how often somebody else may be faster.
const kvTries = 10

// Begin implements [Store].
func (s *KV) Begin(ctx context.Context, c Claim) (there *Record, err error) {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	claim := Record{Fingerprint: c.Fingerprint, Owner: c.Owner, Until: now.Add(c.Lease).UnixMilli()}
	err = s.change(ctx, c, c.TTL, func(r Record) (Record, bool) {
		switch {
		case r.Owner == "": // unknown, or released
		case r.Answer != nil, r.Fingerprint != c.Fingerprint, now.UnixMilli() < r.Until:
			there = &r
			return r, false
		}
		there = nil
		return claim, true
	})
	return there, err
}

// Complete implements [Store].
func (s *KV) Complete(ctx context.Context, c Claim, a Answer) error {
	return s.end(ctx, c, c.TTL, func(r Record) Record { r.Answer = &a; return r })
}

// Release implements [Store].
func (s *KV) Release(ctx context.Context, c Claim) error {
	return s.end(ctx, c, time.Second, func(Record) Record { return Record{} })
}

// end changes a record that the claim still has.
func (s *KV) end(ctx context.Context, c Claim, lifetime time.Duration, to func(Record) Record) error {
	lost := false
	err := s.change(ctx, c, lifetime, func(r Record) (Record, bool) {
		lost = r.Owner != c.Owner || r.Answer != nil
		return to(r), !lost
	})
	if lost {
		return ErrLost
	}
	return err
}

// change replaces the record under a key, if f says so.
func (s *KV) change(ctx context.Context, c Claim, lifetime time.Duration, f func(Record) (Record, bool)) error {
	var err error
	for range kvTries {
		var there Record
		var revision uint64
		if there, revision, err = s.bucket.Get(ctx, event.Key(c.Key)); err != nil {
			break
		}
		next, wanted := f(there)
		if !wanted {
			return nil
		}
		if _, err = s.bucket.PutFor(ctx, event.Key(c.Key), next, revision, lifetime); !errors.Is(err, bus.ErrConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("idempotency: %w", err)
	}
	return nil
}
