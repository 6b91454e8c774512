package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Head is the last page of a partition.
type Head struct {
	Partition int
	Owner     string // "" if it never had one
	Farewell  bool   // the owner has ended, and nothing runs
	Floor     uint64 // up to this sequence everything has ended
	// Types says up to which sequence the events of each type have ended: up to the
	// floor, but for those that the owner before did not handle.
	Types map[event.Type]uint64
	// Page is what the page is: "fence", "page" or "farewell".
	Page string
	// Sequence is the page's own in the stream.
	Sequence uint64
	At       time.Time
}

// Heads returns the last pages of a consumer's partitions, by partition, of those
// that have one. Any replica may answer, which may lag behind. Errors match
// [ErrBadMark], [ErrNoStream] or [bus.ErrUnavailable].
func (l *Partitions) Heads(ctx context.Context, c event.Consumer) (map[int]Head, error) {
	root := l.marks.prefix + string(c) + "."
	heads := map[int]Head{}
	answers, err := jetstreamext.GetLastMsgsFor(ctx, l.marks.bus.JetStream(), l.marks.stream, []string{root + "*" + pageSuffix})
	if err != nil {
		return nil, fmt.Errorf("dedup: pages of %s: %w: %w", c, bus.ErrUnavailable, err)
	}
	for m, err := range answers {
		switch {
		case errors.Is(err, jetstreamext.ErrNoMessages):
			return heads, nil
		case err != nil:
			return nil, fmt.Errorf("dedup: pages of %s: %w: %w", c, bus.ErrUnavailable, err)
		}
		p, err := pageOf(m)
		if err != nil {
			return nil, fmt.Errorf("dedup: pages of %s: %w", c, err)
		}
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(m.Subject, root), pageSuffix))
		if err != nil {
			continue // not one of ours
		}
		h := Head{
			Partition: n, Owner: p.owner, Farewell: p.kind == pageFarewell, Floor: p.floor,
			Types: map[event.Type]uint64{}, Page: string(p.kind), Sequence: m.Sequence, At: m.Time,
		}
		for t, at := range p.types {
			h.Types[t] = min(at, p.floor)
		}
		heads[n] = h
	}
	return heads, nil
}

// Mark returns what is known of an event; false when nothing is, or no longer. An event
// that has ended without a story is looked for on all pages: that is for people.
// Errors are those of [KV.Mark].
func (l *Partitions) Mark(ctx context.Context, c event.Consumer, k event.EventKey) (m Mark, known bool, err error) {
	if m, known, err = l.book.Mark(ctx, c, k); known || err != nil {
		return m, known, err
	}
	key, err := k.Binary()
	if err != nil {
		return Mark{}, false, fmt.Errorf("dedup: mark of %s.%s: %w: %w", c, k, ErrConfig, err)
	}
	now, err := l.Now(ctx)
	if err != nil {
		return Mark{}, false, err
	}
	pages := bus.ScanConfig{Filter: l.marks.prefix + string(c) + ".*" + pageSuffix, From: 1}
	err = l.marks.bus.ScanMessages(ctx, l.marks.stream, pages, func(found *nats.Msg, meta *nats.MsgMetadata) (bool, error) {
		p, err := pageOf(&jetstream.RawStreamMsg{Subject: found.Subject, Sequence: meta.Sequence.Stream, Header: found.Header, Data: found.Data})
		if err != nil {
			return false, err
		}
		if slices.Contains(p.ended, key) && now.Sub(meta.Timestamp) <= l.retention {
			m, known = record{State: stateDone}.mark(meta.Timestamp), true
		}
		return !known, nil
	})
	if err != nil {
		return Mark{}, false, fmt.Errorf("dedup: mark of %s.%s: %w", c, k, l.marks.missing(err))
	}
	return m, known, nil
}
