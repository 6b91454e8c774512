package dedup

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
)

// group commits steps, many in one atomic batch: most of what a batch costs the
// server is the same for one step as for hundreds. The first step that is ready
// goes at once; those that get ready while it is under way go together in the
// next batch. Nothing waits for company. One batch is under way at a time: with
// a second one beside it both would be smaller, and dearer for each step, and no
// step of the one could build on a document of the other.
type group struct {
	bus    *bus.Bus
	reader *streamStore

	mu     sync.Mutex
	queue  []*step
	flying bool    // a batch is under way
	serial Version // of the latest change
	// tips are the documents with a change that is not committed yet.
	tips map[string]*tip
	// known are the latest revisions of documents that this process has heard
	// of. They say when to ask the stream's leader, and never what is there: a
	// stream that was made anew or has lost its end goes back.
	known map[string]sighting
	// half is half a batch that the server has stored, until the rest is.
	half error
}

const (
	// maxBatchBytes bounds what a batch holds at server and client; a single
	// step may be larger.
	maxBatchBytes = 4 << 20
	// maxKnown is how many documents are remembered.
	maxKnown = 4096
)

func newGroup(b *bus.Bus, reader *streamStore) *group {
	return &group{bus: b, reader: reader, tips: map[string]*tip{}, known: map[string]sighting{}}
}

// commit makes a step durable and returns the revision of its mark. Errors
// match errConflict, when the mark has moved, [ErrStale], or those of
// [bus.Bus.SendBatch] and [bus.Pending.Wait]; after [bus.ErrUnavailable] it is
// not known what is stored. If ctx ends first the step may still be committed.
func (g *group) commit(ctx context.Context, s *step) (uint64, error) {
	if n := s.messages(); n > bus.MaxBatch {
		return 0, fmt.Errorf("%w: a step of %d messages, the server takes %d in one batch", bus.ErrTooLarge, n, bus.MaxBatch)
	}
	if err := g.confirm(ctx, s.reads); err != nil {
		return 0, err
	}
	if err := g.enqueue(s); err != nil { //nolint:contextcheck // a flight carries other steps, too, and outlives this one's context
		return 0, err
	}
	select {
	case o := <-s.done:
		return o.revision, o.err
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: not committed yet: %w", bus.ErrUnavailable, context.Cause(ctx))
	}
}

// confirm asks the stream's leader whether documents are as a step has seen them.
func (g *group) confirm(ctx context.Context, reads []*change) error {
	for _, c := range reads {
		m, err := g.reader.latest(ctx, c.subject)
		if err != nil {
			return err
		}
		if sequence := sequenceOf(m); sequence != uint64(c.based) {
			g.learn(c.subject, sighting{revision: sequence})
			return fmt.Errorf("%w: %s", ErrStale, c.subject)
		}
	}
	return nil
}

func (g *group) enqueue(s *step) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range s.docs {
		if !g.current(c) {
			return fmt.Errorf("%w: %s", ErrStale, c.subject)
		}
	}
	for _, c := range s.docs {
		g.stage(c)
	}
	g.queue = append(g.queue, s)
	if !g.flying {
		g.flying = true
		go g.fly()
	}
	return nil
}

// current reports whether a change is based on the newest state of its
// document, as far as it is known here.
func (g *group) current(c *change) bool {
	if t := g.tips[c.subject]; t != nil {
		return !t.broken && t.version == c.based
	}
	return !c.based.staged() && uint64(c.based) >= g.known[c.subject].revision
}

// sighting is what is remembered of a document.
type sighting struct {
	revision uint64
	whole    bool // the step that wrote it is stored to its end
}

// learn notes the revision of a document, as the stream's leader tells it.
func (g *group) learn(subject string, s sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxKnown {
		clear(g.known) // they only save a question
	}
	if before := g.known[subject]; before.revision == s.revision {
		s.whole = s.whole || before.whole
	}
	g.known[subject] = s
}

// behind reports whether a revision of a document is older than one that this
// process has heard of.
func (g *group) behind(subject string, revision uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return revision < g.known[subject].revision
}

// trusts reports whether this process knows a revision of a document to be whole.
func (g *group) trusts(subject string, revision uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known[subject] == sighting{revision, true}
}

func (g *group) stage(c *change) {
	t := g.tips[c.subject]
	if c.keeps {
		t.open++
		c.tip = t
		return
	}
	if t == nil {
		t = &tip{base: uint64(c.based)}
		g.tips[c.subject] = t
	}
	g.serial++
	t.version = firstStaged + g.serial
	t.data, t.deletes = c.data, c.deletes
	t.open++
	c.tip = t
}

// fly commits batches until nothing is left that could go.
func (g *group) fly() {
	for {
		steps := g.take()
		if len(steps) == 0 {
			return
		}
		f := flight{g}
		f.commit(context.Background(), steps)
	}
}

// take returns the steps of the next batch, as many as it holds.
func (g *group) take() []*step {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, messages, size := 0, 0, int64(0)
	for ; n < len(g.queue); n++ {
		s := g.queue[n]
		messages, size = messages+s.messages(), size+s.size
		if n > 0 && (messages > bus.MaxBatch || size > maxBatchBytes) {
			break
		}
	}
	taken := slices.Clone(g.queue[:n])
	g.queue = slices.Delete(g.queue, 0, n)
	g.flying = len(taken) > 0
	return taken
}

// landed ends steps that were stored, each message at its sequence.
func (g *group) landed(steps []*step, documents []string, sequences []uint64) {
	g.mu.Lock()
	revisions := make([]uint64, len(steps))
	at := len(documents)
	for i, s := range steps {
		if at += len(s.out); s.mark != nil {
			revisions[i] = sequences[at]
			at++
		}
	}
	for i, subject := range documents {
		g.tips[subject].base = sequences[i]
	}
	for _, s := range steps {
		for _, c := range s.docs {
			g.leave(c)
		}
	}
	g.mu.Unlock()
	for i, subject := range documents {
		g.learn(subject, sighting{sequences[i], true})
	}
	for i, s := range steps {
		s.done <- outcome{revision: revisions[i]}
	}
}

// leave ends a change's part in its document's tip. The caller holds g.mu.
func (g *group) leave(c *change) {
	if c.tip.open--; c.tip.open == 0 && g.tips[c.subject] == c.tip {
		delete(g.tips, c.subject)
	}
}

// broken reports whether a step rests on a change that failed.
func (g *group) broken(s *step) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.broken()
}

// breakOff says of documents that the steps change that others have changed them.
func (g *group) breakOff(steps []*step, moved map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range steps {
		for c := range s.writes {
			c.tip.broken = c.tip.broken || moved[c.subject]
		}
	}
}

// fail ends a step of a flight, and with it whatever waits that builds on what
// it would have written: that is stale. A step that begins anew, as a second try
// does, builds on something else.
func (g *group) fail(s *step, err error) {
	g.mu.Lock()
	fallen := []*step{s}
	g.abandon(s)
	g.queue = slices.DeleteFunc(g.queue, func(q *step) bool {
		if !q.broken() {
			return false
		}
		g.abandon(q)
		fallen = append(fallen, q)
		return true
	})
	g.mu.Unlock()
	for _, f := range fallen {
		f.done <- outcome{err: err}
		err = fmt.Errorf("%w: a change before it failed", ErrStale)
	}
}

// abandon takes the changes of a step back. The caller holds g.mu.
func (g *group) abandon(s *step) {
	for _, c := range s.docs {
		c.tip.broken = c.tip.broken || !c.keeps
		g.leave(c)
	}
}

// documents returns one message for each document that the steps change: the
// last change, following the revision that the first one is based on.
func (g *group) documents(steps []*step) (subjects []string, msgs []*nats.Msg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	index := map[string]int{}
	for _, s := range steps {
		for c := range s.writes {
			i, again := index[c.subject]
			if !again {
				i = len(msgs)
				index[c.subject] = i
				subjects = append(subjects, c.subject)
				msgs = append(msgs, nil)
			}
			msgs[i] = c.message(c.tip.base, g.reader.signature(s.mark))
		}
	}
	return subjects, msgs
}

// bases returns the revisions that the documents of the steps follow.
func (g *group) bases(steps []*step) map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	bases := map[string]uint64{}
	for _, s := range steps {
		for c := range s.writes {
			bases[c.subject] = c.tip.base
		}
	}
	return bases
}

// peek returns the newest state of a document if it is not committed yet.
func (g *group) peek(subject string) (Document, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tips[subject]
	if t == nil || t.broken {
		return Document{}, false
	}
	return Document{Data: t.data, Version: t.version, Exists: !t.deletes}, true
}
