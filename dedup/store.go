package dedup

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// store keeps marks by key, with revisions. What a mark means is the engine's
// business. The lifetime of a mark belongs to its value: each write sets it
// anew from the record's state, for ever for a parked or known one and the
// retention for all others.
type store interface {
	// read returns the mark under key, without a record when there is none,
	// or none any more. It may lag behind the latest write.
	read(ctx context.Context, key string) (entry, error)
	// write makes out durable and then, if the mark is still at revision
	// after (0: no mark), replaces it by r; together if the store can. c is
	// the claim that ends with it or is renewed, nil if there is none yet. It
	// returns the new revision, or errConflict when the mark has moved. After
	// any other error it is not known what was stored.
	write(ctx context.Context, c *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error)
	// now is the clock that stamps entries; at most the current time, and
	// less by at most what an answer takes to arrive.
	now(ctx context.Context) (time.Time, error)
}

// entry is a mark as it is stored.
type entry struct {
	// revision is what the next write follows: of the mark, or of the marker
	// that a deleted or expired one has left; 0 when there is nothing.
	revision uint64
	record   record
	created  time.Time // by the store's clock
}

// markKey is <consumer>.<event key>.
func markKey(c event.Consumer, k event.EventKey) string { return string(c) + "." + string(k) }
