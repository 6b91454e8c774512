// Package letters opens the dead letters of a system. It gives a queue of package
// dlq the marks of the ledgers of package dedup; the two do not know each other.
package letters

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// Open returns the dead letters of the stream of b's system. It does no I/O.
func Open(b *bus.Bus) (*dlq.Queue, error) {
	m, err := marksOf(b)
	if err != nil {
		return nil, err
	}
	return dlq.Open(b, m), nil
}

// OpenWith returns those of a system with an outbox: its parked rows too, and
// marks of consumers whose ledger is in the same database. connect is called once,
// when the first letter of the stream is asked for.
func OpenWith(o *outbox.Outbox, connect func() (*bus.Bus, error)) *dlq.Queue {
	return dlq.Join(o.Parked(), sync.OnceValues(func() (*dlq.Stream, error) {
		b, err := connect()
		if err != nil {
			return nil, err
		}
		m, err := marksOf(b)
		if err != nil {
			return nil, err
		}
		ledger, err := outbox.NewLedger(o, b, outbox.LedgerConfig{})
		if err != nil {
			return nil, fmt.Errorf("letters: %w", err)
		}
		m.ledgers = append(m.ledgers, ledger)
		return dlq.NewStream(b, m), nil
	}))
}

// marksOf returns the marks that NATS has.
func marksOf(b *bus.Bus) (marks, error) {
	kv, err := dedup.NewKV(b, dedup.Config{})
	if err != nil {
		return marks{}, fmt.Errorf("letters: %w", err)
	}
	partitions, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		return marks{}, fmt.Errorf("letters: %w", err)
	}
	return marks{b, []ledger{kv, partitions}}, nil
}

// ledger is what people ask of one.
type ledger interface {
	Mark(ctx context.Context, c event.Consumer, k event.EventKey) (dedup.Mark, bool, error)
	Discard(ctx context.Context, c event.Consumer, k event.EventKey) error
	TakeBack(ctx context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error)
}

// marks are the marks of all ledgers. A consumer has one of them, and nobody
// outside knows which; one that has changed its ledger has left marks in the
// old one, and the newest mark of an event counts.
type marks struct {
	bus     *bus.Bus
	ledgers []ledger
}

var _ dlq.Marks = marks{}

func (m marks) Mark(ctx context.Context, c event.Consumer, k event.EventKey) (dlq.Mark, bool, error) {
	_, mark, known, err := m.newest(ctx, c, k)
	return dlq.Mark(mark), known, err
}

func (m marks) Discard(ctx context.Context, c event.Consumer, k event.EventKey) error {
	l, _, known, err := m.newest(ctx, c, k)
	if err != nil || !known {
		return err
	}
	return l.Discard(ctx, c, k)
}

func (m marks) TakeBack(ctx context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error) {
	l, _, known, err := m.newest(ctx, c, k)
	if err != nil || !known {
		return false, err
	}
	return l.TakeBack(ctx, c, k, replay)
}

// Workers returns how many processes run a consumer, paused or not.
func (m marks) Workers(ctx context.Context, c event.Consumer) (int, error) {
	status, err := consumer.Look(ctx, m.bus, c)
	switch {
	case errors.Is(err, consumer.ErrNoDurable):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("letters: %w", err)
	}
	return status.Workers, nil
}

func (m marks) newest(ctx context.Context, c event.Consumer, k event.EventKey) (l ledger, newest dedup.Mark, known bool, err error) {
	for _, candidate := range m.ledgers {
		mark, found, err := candidate.Mark(ctx, c, k)
		if err != nil {
			return nil, dedup.Mark{}, false, fmt.Errorf("letters: %w", err)
		}
		if found && (!known || mark.At.After(newest.At)) {
			l, newest, known = candidate, mark, true
		}
	}
	return l, newest, known, nil
}
