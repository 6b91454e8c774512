package dedup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
	// settled are lower bounds of the revisions of documents committed from
	// here, so that a step based on an older one is found out without asking.
	settled map[string]uint64
}

const (
	// maxBatchBytes bounds what a batch holds at server and client; a single
	// step may be larger.
	maxBatchBytes = 4 << 20
	// maxSettled is how many documents are remembered after their commit.
	maxSettled = 4096
)

// step is a completion on its way: the mark, what goes out and the documents
// that change with it.
type step struct {
	mark  *nats.Msg
	after uint64 // the revision that the mark follows
	out   []*nats.Msg
	docs  []*change
	// alone are subjects of out of which a batch can hold one message only:
	// one that replaces what is there, as a timer does.
	alone []string
	size  int64
	ended bool         // has an outcome; belongs to its flight
	done  chan outcome // receives one
}

type outcome struct {
	revision uint64 // of the mark
	err      error
}

// change is one document that a step writes.
type change struct {
	subject string
	data    []byte
	deletes bool
	based   Version // what the handler has seen
	tip     *tip    // of its document, once it is staged
}

// tip is the newest change of a document that is not committed yet. Later
// steps build on it: a whole row of them is committed as one write.
type tip struct {
	version Version
	data    []byte
	deletes bool
	base    uint64 // the document's revision in the stream
	open    int    // changes that are not committed
	broken  bool   // one of them failed: the others fall with it
}

func newGroup(b *bus.Bus, reader *streamStore) *group {
	return &group{bus: b, reader: reader, tips: map[string]*tip{}, settled: map[string]uint64{}}
}

func newStep(mark *nats.Msg, after uint64, out []*nats.Msg) *step {
	s := &step{mark: mark, after: after, done: make(chan outcome, 1), size: bus.PayloadSize(mark)}
	for _, m := range out {
		s.size += bus.PayloadSize(m)
		if c, ok := changeOf(m); ok {
			s.docs = append(s.docs, c)
		} else {
			s.out = append(s.out, m)
			if replaces(m) {
				s.alone = append(s.alone, m.Subject)
			}
		}
	}
	return s
}

// replaces reports whether a message replaces all others of its subject. The
// server sees to that for schedules.
func replaces(m *nats.Msg) bool {
	return len(m.Header[jetstream.MsgRollup]) > 0 || len(m.Header[jetstream.ScheduleHeader]) > 0
}

// subjects are all that no two steps may write without regard to each other.
func (s *step) subjects(yield func(subject string) bool) {
	for _, c := range s.docs {
		if !yield(c.subject) {
			return
		}
	}
	for _, subject := range s.alone {
		if !yield(subject) {
			return
		}
	}
}

func (s *step) messages() int { return 1 + len(s.out) + len(s.docs) }

func (s *step) changes(subject string) bool {
	return slices.ContainsFunc(s.docs, func(c *change) bool { return c.subject == subject })
}

// broken reports whether the step builds on a change that failed. The caller
// holds the group's mu.
func (s *step) broken() bool {
	return slices.ContainsFunc(s.docs, func(c *change) bool { return c.tip.broken })
}

// commit makes a step durable and returns the revision of its mark. Errors
// match errConflict, when the mark has moved, [ErrStale], or those of
// [bus.Bus.SendBatch] and [bus.Pending.Wait]; after [bus.ErrUnavailable] it is
// not known what is stored. If ctx ends first the step may still be committed.
func (g *group) commit(ctx context.Context, s *step) (uint64, error) {
	if n := s.messages(); n > bus.MaxBatch {
		return 0, fmt.Errorf("%w: a step of %d messages, the server takes %d in one batch", bus.ErrTooLarge, n, bus.MaxBatch)
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
	return !c.based.staged() && uint64(c.based) >= g.settled[c.subject]
}

func (g *group) stage(c *change) {
	t := g.tips[c.subject]
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

// take returns the steps of the next batch. Of a timer there is one message in a
// batch: the next step that sets it waits, and so do those that build on that step.
func (g *group) take() []*step {
	g.mu.Lock()
	defer g.mu.Unlock()
	var taken, left []*step
	waiting, once := map[string]bool{}, map[string]bool{} // subjects of steps that have to wait, and of timers in the batch
	messages, size := 0, int64(0)
	for i, s := range g.queue {
		messages, size = messages+s.messages(), size+s.size
		if len(taken) > 0 && (messages > bus.MaxBatch || size > maxBatchBytes) {
			left = append(left, g.queue[i:]...)
			break
		}
		if s.waits(waiting, once) {
			for subject := range s.subjects {
				waiting[subject] = true
			}
			messages, size = messages-s.messages(), size-s.size
			left = append(left, s)
			continue
		}
		for _, subject := range s.alone {
			once[subject] = true
		}
		taken = append(taken, s)
	}
	g.queue = left
	g.flying = len(taken) > 0
	return taken
}

// waits says that a step cannot be in the batch: a timer is in it already, or a
// step before it waits that writes the same.
func (s *step) waits(waiting, once map[string]bool) bool {
	for subject := range s.subjects {
		if waiting[subject] || once[subject] {
			return true
		}
	}
	return false
}

// landed ends steps that were stored from sequence first on.
func (g *group) landed(steps []*step, documents []string, first uint64) {
	g.mu.Lock()
	sequence := first + uint64(len(documents))
	revisions := make([]uint64, len(steps))
	for i, s := range steps {
		revisions[i] = sequence + uint64(len(s.out))
		sequence = revisions[i] + 1
		for _, c := range s.docs {
			c.tip.open--
		}
	}
	for i, subject := range documents {
		t := g.tips[subject]
		t.base = first + uint64(i)
		if t.open == 0 {
			delete(g.tips, subject)
		}
		if len(g.settled) >= maxSettled {
			clear(g.settled) // they only save a question
		}
		g.settled[subject] = first
	}
	g.mu.Unlock()
	for i, s := range steps {
		s.done <- outcome{revision: revisions[i]}
	}
}

// broken reports whether a step builds on a change that failed.
func (g *group) broken(s *step) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.broken()
}

// breakOff says of documents that the steps change that others have changed them.
func (g *group) breakOff(steps []*step, moved func(subject string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range steps {
		for _, c := range s.docs {
			c.tip.broken = c.tip.broken || moved(c.subject)
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
		c.tip.broken = true
		if c.tip.open--; c.tip.open == 0 {
			delete(g.tips, c.subject)
		}
	}
}

// documents returns one message for each document that the steps change: the
// last change, following the revision that the first one is based on.
func (g *group) documents(steps []*step) (subjects []string, msgs []*nats.Msg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	index := map[string]int{}
	for _, s := range steps {
		for _, c := range s.docs {
			i, again := index[c.subject]
			if !again {
				i = len(msgs)
				index[c.subject] = i
				subjects = append(subjects, c.subject)
				msgs = append(msgs, nil)
			}
			msgs[i] = c.message(c.tip.base)
		}
	}
	return subjects, msgs
}

func (c *change) message(base uint64) *nats.Msg {
	m := &nats.Msg{Subject: c.subject, Data: c.data, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(base, 10)},
		jetstream.MsgTTLHeader:              {"never"},
	}}
	if base > 0 {
		m.Header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	}
	if c.deletes {
		m.Header[headerOperation] = []string{operationDelete}
		m.Header[jetstream.MsgTTLHeader] = []string{deletedTTL}
	}
	return m
}

// bases returns the revisions that the documents of the steps follow.
func (g *group) bases(steps []*step) map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	bases := map[string]uint64{}
	for _, s := range steps {
		for _, c := range s.docs {
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
