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
// goes at once; those that get ready while its batch is under way go together in
// the next one. One batch is under way at a time. With a second one beside it
// both would be smaller and cost more for each step, and no step of one could
// build on a document of the other.
type group struct {
	bus    *bus.Bus
	reader *streamStore

	mu         sync.Mutex
	queue      []*step
	committing bool    // a batch is under way
	serial     Version // of the latest tip
	// tips are the documents whose newest state is not committed yet, by subject.
	tips map[string]*tip
	// known are the latest revisions of documents that this process knows of, by
	// subject. They say when to ask the stream's leader. They do not say what is
	// stored: in a stream that was made anew or has lost its end, revisions go back.
	known map[string]sighting
	cache cache
	// half says that the server has stored a part of a batch; nil once the rest is.
	half error
}

const (
	// maxBatchBytes bounds what a batch holds at server and client; a single
	// step may be larger.
	maxBatchBytes = 4 << 20
	// maxStep is how many messages a step may have: its page comes on top.
	maxStep = bus.MaxBatch - 1
	// maxKnown bounds how many documents are known.
	maxKnown = 4096
)

func newGroup(b *bus.Bus, reader *streamStore) *group {
	return &group{bus: b, reader: reader, tips: map[string]*tip{}, known: map[string]sighting{}, cache: newCache()}
}

// commit makes a step durable and returns the revision of its mark. Errors
// match errConflict, when the mark has moved, [ErrStale], or those of
// [bus.Bus.SendBatch] and [bus.Pending.Wait]; after [bus.ErrUnavailable] it is
// not known what is stored. If ctx ends first the step may still be committed.
func (g *group) commit(ctx context.Context, s *step) (uint64, error) {
	if n := s.messages(); n > maxStep {
		return 0, fmt.Errorf("%w: a step of %d messages, a batch holds %d", bus.ErrTooLarge, n, maxStep)
	}
	if err := g.confirm(ctx, s.reads); err != nil {
		return 0, err
	}
	if err := g.enqueue(s); err != nil { //nolint:contextcheck // a batch has other steps, too, and outlives this one's context
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
func (g *group) confirm(ctx context.Context, reads []*access) error {
	for _, a := range reads {
		m, err := g.reader.latest(ctx, a.subject)
		if err != nil {
			return err
		}
		if sequence := sequenceOf(m); sequence != uint64(a.based) {
			g.moved(a.subject, sequence)
			return fmt.Errorf("%w: %s", ErrStale, a.subject)
		}
	}
	return nil
}

func (g *group) enqueue(s *step) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range s.docs {
		if !g.current(a) {
			return fmt.Errorf("%w: %s", ErrStale, a.subject)
		}
	}
	for _, a := range s.docs {
		g.stage(a)
	}
	g.queue = append(g.queue, s)
	if !g.committing {
		g.committing = true
		go g.commitQueue()
	}
	return nil
}

// current reports whether an access is based on the newest state of its
// document, as far as this process knows it. The caller holds g.mu.
func (g *group) current(a *access) bool {
	if t := g.tips[a.subject]; t != nil {
		return !t.broken && t.version == a.based
	}
	return !a.based.staged() && uint64(a.based) >= g.known[a.subject].revision
}

// sighting is what this process knows of a stored document.
type sighting struct {
	revision uint64
	whole    bool // all of the step that wrote it is stored
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

// moved notes that others have changed a document.
func (g *group) moved(subject string, revision uint64) {
	g.learn(subject, sighting{revision: revision})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cache.share(subject)
}

// behind reports whether a revision of a document is older than one that this
// process knows of.
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

// stage makes an access part of its document's tip. The caller holds g.mu.
func (g *group) stage(a *access) {
	t := g.tips[a.subject]
	if a.keeps {
		t.open++
		a.tip = t
		return
	}
	if t == nil {
		t = &tip{base: uint64(a.based)}
		g.tips[a.subject] = t
	}
	g.cache.drop(a.subject)
	g.serial++
	t.version = firstStaged + g.serial
	t.data, t.deletes = a.data, a.deletes
	t.open++
	a.tip = t
}

// commitQueue commits one batch after another until the queue is empty.
func (g *group) commitQueue() {
	for {
		steps := g.take()
		if len(steps) == 0 {
			return
		}
		b := batch{g}
		b.commit(context.Background(), steps)
	}
}

// take returns the steps of the next batch, as many as it holds.
func (g *group) take() []*step {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, messages, size := 0, 0, int64(0)
	pages := map[*Tenure]bool{nil: true}
	for ; n < len(g.queue); n++ {
		s := g.queue[n]
		messages, size = messages+s.messages(), size+s.size
		if !pages[s.tenure] {
			pages[s.tenure] = true
			messages++
		}
		if n > 0 && (messages > bus.MaxBatch || size > maxBatchBytes) {
			break
		}
	}
	taken := slices.Clone(g.queue[:n])
	g.queue = slices.Delete(g.queue, 0, n)
	g.committing = len(taken) > 0
	return taken
}

// stored ends steps whose messages are in the stream at these sequences: documents,
// what each step emits and its mark, pages.
func (g *group) stored(steps []*step, documents []string, pages []turn, sequences []uint64) {
	g.mu.Lock()
	at := len(documents)
	for _, s := range steps {
		if at += len(s.out); s.mark != nil {
			s.revision = sequences[at]
			at++
		}
	}
	for i, subject := range documents {
		g.tips[subject].base = sequences[i]
	}
	for _, s := range steps {
		for _, a := range s.docs {
			g.leave(a)
		}
	}
	for _, s := range steps {
		for a := range s.writes {
			g.remember(a, s.tenure)
		}
	}
	g.mu.Unlock()
	for i, p := range pages {
		p.tenure.turned(p.steps, sequences[at+i])
	}
	for i, subject := range documents {
		g.learn(subject, sighting{sequences[i], true})
	}
	for _, s := range steps {
		s.done <- result{revision: s.revision}
	}
}

// remember puts a document that is stored into the cache, unless a later change of it is
// under way. The caller holds g.mu.
func (g *group) remember(a *access, t *Tenure) {
	if a.deletes || g.tips[a.subject] != nil {
		g.cache.drop(a.subject)
		return
	}
	g.cache.put(a.subject, cached{tenure: t, data: a.data, revision: a.tip.base})
}

// leave takes an access out of its document's tip. The caller holds g.mu.
func (g *group) leave(a *access) {
	if a.tip.open--; a.tip.open == 0 && g.tips[a.subject] == a.tip {
		delete(g.tips, a.subject)
	}
}

// broken reports whether a step builds on another step that failed.
func (g *group) broken(s *step) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.broken()
}

// breakOff makes the tips of documents that others have written invalid.
func (g *group) breakOff(steps []*step, moved map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range steps {
		for a := range s.writes {
			a.tip.broken = a.tip.broken || moved[a.subject]
		}
	}
}

// fail ends a step with an error, and the waiting steps that build on what it
// would have written with [ErrStale]. Steps that come later read the documents anew.
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
		f.done <- result{err: err}
		err = fmt.Errorf("%w: a change before it failed", ErrStale)
	}
}

// abandon takes back what a step would have written. The caller holds g.mu.
func (g *group) abandon(s *step) {
	for _, a := range s.docs {
		a.tip.broken = a.tip.broken || !a.keeps
		g.leave(a)
	}
}

// documents returns one message for each document that the steps write: its last
// state, following the revision that the first step has read.
func (g *group) documents(steps []*step) (subjects []string, msgs []*nats.Msg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	index := map[string]int{}
	for _, s := range steps {
		for a := range s.writes {
			i, again := index[a.subject]
			if !again {
				i = len(msgs)
				index[a.subject] = i
				subjects = append(subjects, a.subject)
				msgs = append(msgs, nil)
			}
			msgs[i] = a.message(a.tip.base, g.reader.signature(s))
		}
	}
	return subjects, msgs
}

// bases returns the revision that each document of the steps follows, by subject.
func (g *group) bases(steps []*step) map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	bases := map[string]uint64{}
	for _, s := range steps {
		for a := range s.writes {
			bases[a.subject] = a.tip.base
		}
	}
	return bases
}

// peek returns the newest state of a document that this process knows: one that is not
// committed yet, or a cached one.
func (g *group) peek(subject string) (Document, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tips[subject]
	if t == nil {
		return g.cache.get(subject)
	}
	if t.broken {
		return Document{}, false
	}
	return Document{Data: t.data, Version: t.version, Exists: !t.deletes}, true
}
