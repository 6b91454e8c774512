// Package letters opens the dead letters of a system whose consumers keep the
// KV ledger: dlq and dedup do not know each other, this ties them.
package letters

import (
	"context"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
)

// Open returns the queue of b's system. It does not talk to the server.
func Open(b *bus.Bus) (*dlq.Queue, error) {
	kv, err := dedup.NewKV(b, dedup.Config{})
	if err != nil {
		return nil, err
	}
	return dlq.Open(b, marks{kv}), nil
}

// marks is the ledger as the queue wants it.
type marks struct{ ledger *dedup.KV }

var _ dlq.Marks = marks{}

func (m marks) Mark(ctx context.Context, c bus.Consumer, k bus.EventKey) (dlq.Mark, bool, error) {
	mark, known, err := m.ledger.Mark(ctx, c, k)
	return dlq.Mark(mark), known, err
}

func (m marks) Discard(ctx context.Context, c bus.Consumer, k bus.EventKey) error {
	return m.ledger.Discard(ctx, c, k)
}
