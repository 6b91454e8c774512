package dedup

import (
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// step is what a handler has returned, on its way into the stream: the done mark,
// the outgoing messages, the documents that change and those that it rests on.
// One without a mark writes nothing, and only waits for what it rests on.
type step struct {
	mark  *nats.Msg
	after uint64 // the revision that the mark follows
	// tenure is the owner's of the partition on whose page the step says kept; nil
	// for a ledger without partitions.
	tenure *Tenure
	kept   kept
	// revision of the mark, once it is stored.
	revision uint64
	out      []*nats.Msg
	docs     []*access
	// reads are committed versions of documents that the step rests on and
	// does not change.
	reads []*access
	size  int64
	ended bool        // has its result; belongs to its batch
	done  chan result // receives one
}

// result is what became of a step: stored, or why not.
type result struct {
	revision uint64 // of the mark
	err      error
}

// access is what a step does to one document: it writes, deletes or keeps it.
type access struct {
	subject string
	data    []byte
	deletes bool
	keeps   bool    // the step rests on the document and does not write it
	based   Version // what the handler has read
	tip     *tip    // of its document, once it is staged
}

// tip is the newest state of a document that is not committed yet. Later steps
// build on it, and several of its states in a row are committed as one write.
type tip struct {
	version Version
	data    []byte
	deletes bool
	base    uint64 // the document's revision in the stream
	open    int    // accesses whose steps have not ended
	broken  bool   // one of them failed: the steps of the others fail, too
}

func newStep(mark *nats.Msg, after uint64, out []*nats.Msg) *step {
	s := &step{mark: mark, after: after, done: make(chan result, 1)}
	if mark != nil {
		s.size = bus.PayloadSize(mark)
	}
	for _, m := range out {
		a, ok := accessOf(m)
		switch {
		case ok && a.keeps && !a.based.staged():
			s.reads = append(s.reads, a)
			continue
		case ok:
			s.docs = append(s.docs, a)
		default:
			s.out = append(s.out, m)
		}
		s.size += bus.PayloadSize(m)
	}
	return s
}

func (s *step) messages() int {
	n := len(s.out)
	if s.mark != nil {
		n++
	}
	for range s.writes {
		n++
	}
	return n
}

// writes are the documents that the step changes.
func (s *step) writes(yield func(a *access) bool) {
	for _, a := range s.docs {
		if !a.keeps && !yield(a) {
			return
		}
	}
}

func (s *step) changes(subject string) bool {
	return slices.ContainsFunc(s.docs, func(a *access) bool { return !a.keeps && a.subject == subject })
}

// broken reports whether the step builds on another step that failed. The caller
// holds the group's mu.
func (s *step) broken() bool {
	return slices.ContainsFunc(s.docs, func(a *access) bool { return a.tip.broken })
}

// message is how the access is stored: it follows the revision base.
func (a *access) message(base uint64, signature []string) *nats.Msg {
	m := &nats.Msg{Subject: a.subject, Data: a.data, Header: nats.Header{
		headerStep:                          signature,
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(base, 10)},
		jetstream.MsgTTLHeader:              {"never"},
	}}
	if a.deletes {
		m.Header[headerOperation] = []string{operationDelete}
	}
	return m
}
