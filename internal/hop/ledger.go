package hop

import (
	"fmt"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
)

// Ledger names an implementation of [dedup.Ledger].
type Ledger string

// The ledgers.
const (
	KV     Ledger = "kv"
	Stream Ledger = "stream"
)

func (l Ledger) open(b *bus.Bus) (dedup.Ledger, error) {
	switch l {
	case KV:
		return dedup.NewKV(b, dedup.Config{})
	case Stream:
		return dedup.NewStream(b, dedup.StreamConfig{})
	default:
		return nil, fmt.Errorf("%w: ledger %q: want %q or %q", ErrConfig, l, KV, Stream)
	}
}
