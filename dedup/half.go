package dedup

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// A server with one replica stores a batch message by message. When it runs out of
// storage on the way, it does not answer, and keeps the messages it has stored.
// These are the first ones of the batch: documents first, pages last. So a document is
// whole if the page of the step that wrote it last is stored.

const (
	// headerStep of a document names the page of the step that wrote it last, and for
	// how many seconds pages are kept: "inventory.17.page 86400".
	headerStep = "Farandole-Step"
	// headerRest of a page names the batch whose rest was stored with it, in another one.
	headerRest = "Farandole-Rest"
	// finishDelay is how long to wait before the rest of a batch is sent again,
	// at first and at most.
	finishDelay, maxFinishDelay = 50 * time.Millisecond, time.Second
	// agedMargin is by how much a document may seem younger than it is.
	agedMargin = 10 * time.Second
)

// signature is the value of headerStep for documents of an owner's step.
func (s *partitionStore) signature(of *Tenure) []string {
	return []string{strings.TrimPrefix(of.subject, s.prefix) + " " + s.lifetime}
}

// whole returns an error matching ErrHalfStored if the step that wrote a document
// last is stored in part. A document that is older than pages are kept is whole. So is
// one that no page has signed: a person, a seed or the ledger before has written it.
func (s *partitionStore) whole(ctx context.Context, m *jetstream.RawStreamMsg) error {
	page, seconds, _ := strings.Cut(m.Header.Get(headerStep), " ")
	if !strings.HasSuffix(page, pageSuffix) {
		return nil
	}
	kept, err := strconv.ParseInt(seconds, 10, 32)
	if err != nil {
		return fmt.Errorf("%w: %s has %s %q", ErrBadMark, m.Subject, headerStep, m.Header.Get(headerStep))
	}
	if ended, err := s.paged(ctx, m, s.prefix+page); err != nil || ended {
		return err
	}
	now, err := s.now(ctx)
	if err != nil || now.Sub(m.Time) >= time.Duration(kept)*time.Second-agedMargin {
		return err
	}
	return fmt.Errorf("%w in stream %s (%w): %s at sequence %d is there, but not the page %s of its step; see docs/upstream.md for what to do",
		ErrHalfStored, s.name, bus.ErrUnavailable, m.Subject, m.Sequence, s.prefix+page)
}

// paged reports whether the page that a document was stored with is there: the first
// one after the document, of the same batch.
func (s *partitionStore) paged(ctx context.Context, m *jetstream.RawStreamMsg, subject string) (bool, error) {
	page, err := s.bus.Next(ctx, s.stream, subject, m.Sequence)
	if err != nil || page == nil {
		return false, s.missing(err)
	}
	id := m.Header.Get(bus.HeaderBatchID)
	return page.Header.Get(bus.HeaderBatchID) == id || page.Header.Get(headerRest) == id, nil
}

// begun reports how many messages of a batch are stored although the batch as a
// whole is not, and the sequence of the first.
func (b *batch) begun(ctx context.Context, msgs []*nats.Msg) (first uint64, n int) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := b.marks.open(ctx)
	if err != nil {
		return 0, 0
	}
	names, partitions := b.bus.Names(), bus.Partitions(stream.CachedInfo().Config)
	stored := func(i int) uint64 {
		m, err := b.marks.latest(ctx, names.Stored(msgs[i].Subject, partitions))
		if err != nil || m == nil || m.Header.Get(bus.HeaderBatchID) != msgs[0].Header.Get(bus.HeaderBatchID) || m.Header.Get(bus.HeaderBatchID) == "" {
			return 0
		}
		// Of two messages on one subject the later one is seen.
		place, err := strconv.ParseUint(m.Header.Get(bus.HeaderBatchSequence), 10, 16)
		if err != nil || int(place) < i+1 {
			return 0
		}
		return m.Sequence - (place - 1)
	}
	if first = stored(0); first == 0 {
		return 0, 0
	}
	return first, sort.Search(len(msgs), func(i int) bool { return stored(i) == 0 })
}

// finish stores the rest of a batch of which the messages at these sequences are
// stored. It tries until that is done, and this ledger stores nothing else
// meanwhile: a process that gives up leaves half a step behind. It gives up when
// others have written what the rest would write, or when the bus is closed.
func (b *batch) finish(ctx context.Context, msgs []*nats.Msg, sequences []uint64) ([]uint64, error) {
	id := msgs[0].Header.Get(bus.HeaderBatchID)
	for delay := finishDelay; ; delay = min(2*delay, maxFinishDelay) {
		rest := msgs[len(sequences):]
		if len(rest) == 0 { // all of it was stored, and a replica that lags behind did not know
			b.setHalf(nil)
			return sequences, nil
		}
		half := fmt.Errorf("%w in stream %s (%w): %d of %d messages of batch %s, sequences %d to %d; the rest is tried again until it is stored: give the server room",
			ErrHalfStored, b.marks.name, bus.ErrUnavailable, len(sequences), len(msgs), id, sequences[0], sequences[len(sequences)-1])
		b.setHalf(half)
		if sequence, found := b.find(ctx, rest[len(rest)-1]); found { // a restarted server has finished it
			b.setHalf(nil)
			return append(sequences, upTo(sequence, len(rest))...), nil
		}
		for _, m := range rest {
			b.force(m, id)
		}
		pending, err := b.bus.SendBatch(ctx, rest)
		var receipt bus.Receipt
		if err == nil {
			receipt, err = pending.Wait(ctx)
		}
		switch {
		case err == nil:
			b.setHalf(nil)
			return append(sequences, upTo(receipt.Sequence, len(rest))...), nil
		case errors.Is(err, bus.ErrClosed):
			return nil, err
		case errors.Is(err, bus.ErrConflict):
			b.setHalf(nil) // whoever reads its documents says so from now on
			return nil, fmt.Errorf("%w, and others have written what the rest would change: see docs/upstream.md for what to do", half)
		case errors.Is(err, bus.ErrDuplicate):
			for _, m := range rest {
				m.Header.Del(nats.MsgIdHdr) // others have emitted it in a run of their own
			}
		case errors.Is(err, bus.ErrUnavailable):
			if first, n := b.begun(ctx, rest); n > 0 {
				sequences = append(sequences, upTo(first+uint64(n)-1, n)...)
			}
		}
		<-time.After(delay)
	}
}

// force makes a record replace whatever is there. Its step has taken effect in part,
// so nobody else may end it in another way. A page tells of which batch it is.
func (b *batch) force(m *nats.Msg, id string) {
	switch {
	case m.Header[headerPage] != nil:
		m.Header[headerRest] = []string{id}
	case strings.HasPrefix(m.Subject, b.marks.prefix):
		m.Header = nats.Header{jetstream.MsgTTLHeader: m.Header[jetstream.MsgTTLHeader]}
	}
}

func (g *group) setHalf(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.half = err
}

// Health returns an error matching [ErrHalfStored] while the server has stored
// half a batch of this ledger, else nil.
func (l documents) Health() error { return l.marks.group.health() }

func (g *group) health() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.half
}
