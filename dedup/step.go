package dedup

import (
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// step is what a handler has returned, on its way into the stream: what its page says
// of the event, the outgoing messages, the documents that change and those that it
// rests on.
type step struct {
	// tenure is the owner's of the partition on whose page the step says kept. A step
	// without one writes nothing, and only waits for what it rests on.
	tenure *Tenure
	kept   kept
	// mark is the record of an event with a story, nil for one without. It follows the
	// revision after and has a revision once it is stored.
	mark            *nats.Msg
	after, revision uint64

	out  []*nats.Msg
	docs []*access
	// reads are committed versions of documents that the step rests on and
	// does not change.
	reads []*access
	size  int64
	ended bool       // has its result; belongs to its batch
	done  chan error // receives one: nil once it is stored
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

// pageShare is about how many bytes a step takes on a page, its share of the page's
// headers included.
const pageShare = 64

func newStep(t *Tenure, k kept, out []*nats.Msg) *step {
	s := &step{tenure: t, kept: k, size: pageShare, done: make(chan error, 1)}
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

// tell has the step write the record of a claim's event, which has a story.
func (s *step) tell(c *Claim) (err error) {
	s.mark, err = s.tenure.ledger.marks.message(s.tenure.root+string(c.Request.Key), c.revision, s.kept.record)
	if err != nil {
		return err
	}
	s.after = c.revision
	s.size += bus.PayloadSize(s.mark)
	return nil
}

// messages is how many messages the step needs besides its page.
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
