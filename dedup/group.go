package dedup

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/farandole/farandole/bus"
)

// group commits steps, many in one atomic batch: most of what a batch costs the
// server is the same for one step as for hundreds. The first step that is ready
// goes at once; those that get ready while its batch is under way go together in
// the next one. One batch is under way at a time. With a second one beside it
// both would be smaller and cost more for each step, and no step of one could
// build on a document of the other.
type group struct {
	bus   *bus.Bus
	marks *partitionStore

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

func newGroup(b *bus.Bus, s *partitionStore) *group {
	return &group{bus: b, marks: s, tips: map[string]*tip{}, known: map[string]sighting{}, cache: newCache()}
}

// commit makes a step durable. Errors match errConflict, when the page or the record
// has moved, [ErrLeaseLost], [ErrStale], or those of [bus.Bus.SendBatch] and
// [bus.Pending.Wait]; after [bus.ErrUnavailable] it is not known what is stored. If
// ctx ends first the step may still be committed.
func (g *group) commit(ctx context.Context, s *step) error {
	if n := s.messages(); n > maxStep {
		return fmt.Errorf("%w: a step of %d messages, a batch holds %d", bus.ErrTooLarge, n, maxStep)
	}
	if err := g.confirm(ctx, s.reads); err != nil {
		return err
	}
	if err := g.enqueue(s); err != nil { //nolint:contextcheck // a batch has other steps, too, and outlives this one's context
		return err
	}
	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: not committed yet: %w", bus.ErrUnavailable, context.Cause(ctx))
	}
}

// confirm asks the stream's leader whether documents are as a step has seen them.
func (g *group) confirm(ctx context.Context, reads []*access) error {
	for _, a := range reads {
		m, err := g.marks.latest(ctx, a.subject)
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
		s.done <- nil
	}
}

// broken reports whether a step builds on another step that failed.
func (g *group) broken(s *step) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.broken()
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
		f.done <- err
		err = fmt.Errorf("%w: a change before it failed", ErrStale)
	}
}
