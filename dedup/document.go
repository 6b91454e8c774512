package dedup

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Document is a stored document as a step sees it.
type Document struct {
	Data []byte
	// Exists is false when there is none; then Data is nil.
	Exists bool
	// Version is what a change of it has to follow.
	Version Version
}

// Version names one state of a document: a sequence of the stream, or a change
// of this process that is not committed yet. 0 is a document never written.
type Version uint64

// firstStaged and above are versions that are not in the stream yet; sequences
// do not get there.
const firstStaged Version = 1 << 63

func (v Version) staged() bool { return v >= firstStaged }

const (
	// headerVersion tells the group that a message is a change of a document,
	// and what it is based on. It is not stored.
	headerVersion = "Farandole-Version"
	// headerOperation marks a deleted document, as in a KV bucket.
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
	// operationKeep is a document that a step rests on and does not change.
	operationKeep = "KEEP"
	// deletedFor is how long a deleted document leaves a trace: as long as a
	// change based on it may be under way.
	deletedFor = time.Minute
)

// documents are what a ledger in the event stream knows of documents.
type documents struct{ marks *partitionStore }

// Document reads a document for a step. It shows changes of this process that
// are not committed yet: should they fail, the step that builds on them is
// [ErrStale]. Errors match [ErrHalfStored], [ErrNoStream], [bus.ErrUnavailable]
// or [bus.ErrClosed].
func (l documents) Document(ctx context.Context, subject string) (Document, error) {
	g := l.marks.group
	if d, ok := g.peek(subject); ok {
		return d, nil
	}
	m, err := l.marks.last(ctx, subject)
	if err == nil && g.behind(subject, sequenceOf(m)) {
		if m, err = l.marks.latest(ctx, subject); err == nil {
			g.learn(subject, sighting{revision: sequenceOf(m)})
		}
	}
	if err == nil && m != nil && !g.trusts(subject, m.Sequence) {
		if err = l.marks.whole(ctx, m); err == nil {
			g.learn(subject, sighting{m.Sequence, true})
		}
	}
	return documentOf(subject, m, err)
}

// Committed reads a document as it is in the stream. With replicas it may lag
// behind the latest change. Errors are those of Document.
func (l documents) Committed(ctx context.Context, subject string) (Document, error) {
	m, err := l.marks.last(ctx, subject)
	return documentOf(subject, m, err)
}

func documentOf(subject string, m *jetstream.RawStreamMsg, err error) (Document, error) {
	if err != nil {
		return Document{}, fmt.Errorf("dedup: document %s: %w", subject, err)
	}
	if m == nil {
		return Document{}, nil
	}
	d := Document{Version: Version(m.Sequence)}
	if m.Header.Get(headerOperation) == "" {
		d.Data, d.Exists = m.Data, true
	}
	return d, nil
}

// Confirm returns nil when documents are committed as they were read: messages
// of [KeepDocument]. Otherwise the error matches [ErrStale], and what was made
// of them is void; or [bus.ErrUnavailable], [bus.ErrClosed] or [ErrNoStream].
func (l documents) Confirm(ctx context.Context, reads []*nats.Msg) error {
	s, err := newStep(nil, kept{}, reads), error(nil)
	committed := s.reads
	if s.reads = nil; len(s.docs) > 0 { // what is not committed yet is waited for
		err = l.marks.group.commit(ctx, s)
	}
	// These come last: all of them were so when the others were committed.
	if err == nil {
		err = l.marks.group.confirm(ctx, committed)
	}
	if err != nil {
		return fmt.Errorf("dedup: confirm what was read: %w", err)
	}
	return nil
}

// PutDocument is the message that writes a document within [Partitions.Complete],
// if it still is at the given version.
func PutDocument(subject string, data []byte, based Version) *nats.Msg {
	return &nats.Msg{
		Subject: subject,
		Header:  nats.Header{headerVersion: {strconv.FormatUint(uint64(based), 10)}},
		Data:    data,
	}
}

// DeleteDocument is the message that deletes a document likewise.
func DeleteDocument(subject string, based Version) *nats.Msg {
	m := PutDocument(subject, nil, based)
	m.Header[headerOperation] = []string{operationDelete}
	return m
}

// KeepDocument is the message that says within [Partitions.Complete] that the step
// rests on a document, at the version in which it was read, and leaves it as it
// is. It is checked right before the step is stored; only putting the document
// back as it is makes both one.
func KeepDocument(subject string, read Version) *nats.Msg {
	m := PutDocument(subject, nil, read)
	m.Header[headerOperation] = []string{operationKeep}
	return m
}

// accessOf reads such a message; ok is false for any other.
func accessOf(m *nats.Msg) (a *access, ok bool) {
	version := m.Header[headerVersion]
	if len(version) == 0 {
		return nil, false
	}
	based, err := strconv.ParseUint(version[0], 10, 64)
	if err != nil {
		return nil, false
	}
	operation := m.Header.Get(headerOperation)
	return &access{
		subject: m.Subject, data: m.Data, based: Version(based),
		deletes: operation == operationDelete, keeps: operation == operationKeep,
	}, true
}
