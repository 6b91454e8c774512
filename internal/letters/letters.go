// Package letters opens the dead letters of a system: dlq and dedup do not
// know each other, this ties them.
package letters

import (
	"context"
	"fmt"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// Open returns the queue of b's system; the marks of consumers with an inbox are
// in their own databases, as far as these are given. It does no I/O.
func Open(b *bus.Bus, databases ...*outbox.Outbox) (*dlq.Queue, error) {
	kv, err := dedup.NewKV(b, dedup.Config{})
	if err != nil {
		return nil, fmt.Errorf("letters: %w", err)
	}
	stream, err := dedup.NewStream(b, dedup.StreamConfig{})
	if err != nil {
		return nil, fmt.Errorf("letters: %w", err)
	}
	all := marks{kv, stream}
	for _, o := range databases {
		inbox, err := dedup.NewSQL(b, o.Inbox(), dedup.SQLConfig{})
		if err != nil {
			return nil, fmt.Errorf("letters: %w", err)
		}
		all = append(all, inbox)
	}
	return dlq.Open(b, all), nil
}

// ledger is what people ask of one.
type ledger interface {
	Mark(ctx context.Context, c event.Consumer, k event.EventKey) (dedup.Mark, bool, error)
	Discard(ctx context.Context, c event.Consumer, k event.EventKey) error
}

// marks are the marks of all ledgers. A consumer has one of them, and nobody
// outside knows which; one that has changed its ledger has left marks in the
// old one, and the newest mark of an event counts.
type marks []ledger

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

func (m marks) newest(ctx context.Context, c event.Consumer, k event.EventKey) (l ledger, newest dedup.Mark, known bool, err error) {
	for _, candidate := range m {
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
