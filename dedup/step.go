package dedup

import (
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// step is a completion on its way: the mark, what goes out, the documents that
// change with it and those that it rests on. Without a mark it writes nothing,
// and only waits for what it rests on.
type step struct {
	mark  *nats.Msg
	after uint64 // the revision that the mark follows
	out   []*nats.Msg
	docs  []*change
	// reads are committed versions of documents that the step rests on and
	// does not change.
	reads []*change
	size  int64
	ended bool         // has an outcome; belongs to its flight
	done  chan outcome // receives one
}

type outcome struct {
	revision uint64 // of the mark
	err      error
}

// change is one document that a step writes, or only rests on.
type change struct {
	subject string
	data    []byte
	deletes bool
	keeps   bool    // it writes nothing
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

func newStep(mark *nats.Msg, after uint64, out []*nats.Msg) *step {
	s := &step{mark: mark, after: after, done: make(chan outcome, 1)}
	if mark != nil {
		s.size = bus.PayloadSize(mark)
	}
	for _, m := range out {
		c, ok := changeOf(m)
		switch {
		case ok && c.keeps && !c.based.staged():
			s.reads = append(s.reads, c)
			continue
		case ok:
			s.docs = append(s.docs, c)
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
func (s *step) writes(yield func(c *change) bool) {
	for _, c := range s.docs {
		if !c.keeps && !yield(c) {
			return
		}
	}
}

func (s *step) changes(subject string) bool {
	return slices.ContainsFunc(s.docs, func(c *change) bool { return !c.keeps && c.subject == subject })
}

// broken reports whether the step rests on a change that failed. The caller
// holds the group's mu.
func (s *step) broken() bool {
	return slices.ContainsFunc(s.docs, func(c *change) bool { return c.tip.broken })
}

func (c *change) message(base uint64, signature []string) *nats.Msg {
	m := &nats.Msg{Subject: c.subject, Data: c.data, Header: nats.Header{
		headerStep:                          signature,
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(base, 10)},
		jetstream.MsgTTLHeader:              {"never"},
	}}
	if c.deletes {
		m.Header[headerOperation] = []string{operationDelete}
	}
	return m
}
