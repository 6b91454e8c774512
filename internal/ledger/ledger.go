// Package ledger lets people choose a service's ledger by a word.
package ledger

import (
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
)

// Kind names an implementation of [dedup.Ledger]; "" is KV.
type Kind string

// The ledgers.
const (
	KV Kind = "kv" // marks in a KV bucket
	// Partition: a part of the keys belongs to one process at a time, and a page tells
	// which of their events have ended.
	Partition Kind = "partition"
)

// stream is what there was before partitions.
const stream Kind = "stream"

// ErrKind is returned for a word that names no ledger.
var ErrKind = errors.New("ledger: unknown kind")

// Open returns the ledger for a service. outside says that its handlers have
// effects outside NATS, so that an event is claimed before they run. It does
// no I/O. The error matches [ErrKind].
func (k Kind) Open(b *bus.Bus, outside bool, log zerolog.Logger) (dedup.Ledger, error) {
	switch k {
	case KV, "":
		return dedup.NewKV(b, dedup.Config{Logger: log})
	case Partition:
		return dedup.NewPartitions(b, dedup.PartitionsConfig{Claims: outside, Logger: log})
	case stream:
	}
	return nil, k.unknown()
}

// UnmarshalText reads a kind from a flag. The error matches [ErrKind].
func (k *Kind) UnmarshalText(text []byte) error {
	switch *k = Kind(text); *k {
	case KV, Partition:
		return nil
	case stream:
	}
	return k.unknown()
}

func (k Kind) unknown() error {
	if k == stream {
		return fmt.Errorf("%w %q: it has become %q, which does not read what %q remembers: let the pending events of the consumers drain, then start them with %q",
			ErrKind, k, Partition, k, Partition)
	}
	return fmt.Errorf("%w %q: want %q or %q", ErrKind, k, KV, Partition)
}
