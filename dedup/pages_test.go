package dedup_test

import (
	"context"
	"sync"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

type ledger = dedup.Partitions

// pages is a process with one partition of each consumer for which it claims. What it
// claims it has read, one message after another.
type pages struct {
	*ledger
	tb        testing.TB
	partition int

	mu       sync.Mutex
	tenures  map[event.Consumer]*dedup.Tenure
	sequence uint64
}

func newPages(tb testing.TB, b *bus.Bus, partition int, cfg dedup.PartitionsConfig) *pages {
	tb.Helper()
	l, err := dedup.NewPartitions(b, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return &pages{ledger: l, tb: tb, partition: partition, tenures: map[event.Consumer]*dedup.Tenure{}}
}

// Claim takes the partition first, if it is not this process's.
func (l *pages) Claim(ctx context.Context, r dedup.Request) (*dedup.Claim, error) {
	t, err := l.tenure(ctx, r.Consumer)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.sequence++
	r.Tenure, r.Sequence = t, l.sequence
	t.Enter(r.Sequence)
	l.mu.Unlock()
	return l.ledger.Claim(ctx, r)
}

func (l *pages) tenure(ctx context.Context, c event.Consumer) (*dedup.Tenure, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tenures[c]; t != nil {
		select {
		case <-t.Lost():
		default:
			return t, nil
		}
	}
	t, err := l.Take(ctx, c, l.partition, dedup.Ownership{Owner: l.tb.Name(), Window: 64})
	if err == nil {
		l.tenures[c] = t
		l.sequence = max(l.sequence, t.Floor())
	}
	return t, err
}
