package deduptest

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Owner is one process with a ledger by partition, for tests that claim an event as if
// its workers competed: it owns one partition of each consumer for which it claims.
// Each claim is of a message of its own, which nothing has read.
type Owner struct {
	*ledger
	partition int
	id        string

	mu       sync.Mutex
	tenures  map[event.Consumer]*dedup.Tenure
	sequence uint64 // of the last message
}

// ledger keeps the embedded field from hiding the method of the same name.
type ledger = dedup.Partitions

var _ Ledger = (*Owner)(nil)

// NewOwner returns a process that owns a partition, from its first claim on.
func NewOwner(l *dedup.Partitions, partition int) *Owner {
	return &Owner{ledger: l, partition: partition, id: rand.Text(), tenures: map[event.Consumer]*dedup.Tenure{}}
}

// Claim takes the partition from whoever has it, if it is not this process's. Errors
// are those of [dedup.Partitions.Take] and [dedup.Partitions.Claim].
func (o *Owner) Claim(ctx context.Context, r dedup.Request) (*dedup.Claim, error) {
	if err := o.enter(ctx, &r); err != nil {
		return nil, err
	}
	return o.ledger.Claim(ctx, r)
}

// enter makes the request one for a message that enters the process's tenure.
func (o *Owner) enter(ctx context.Context, r *dedup.Request) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tenures[r.Consumer]
	if t == nil || lost(t) {
		taken, err := o.Take(ctx, r.Consumer, []int{o.partition}, dedup.Ownership{Owner: o.id, Window: 64})
		if err != nil {
			return err
		}
		t = taken[o.partition]
		o.tenures[r.Consumer] = t
		o.sequence = max(o.sequence, t.Floor())
	}
	o.sequence++
	t.Enter(o.sequence)
	r.Tenure, r.Sequence = t, o.sequence
	return nil
}

func lost(t *dedup.Tenure) bool {
	select {
	case <-t.Lost():
		return true
	default:
		return false
	}
}
