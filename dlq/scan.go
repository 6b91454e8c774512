package dlq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

const (
	// scanBatch is how many letters, without their data, are asked for at once.
	scanBatch = 1000
	// scanIdle is when the server forgets a scan whose reader has died.
	scanIdle = 30 * time.Second
	// cleanUp bounds what must still be done after a cancellation.
	cleanUp = 5 * time.Second
)

// view is the dead-letter stream, or a part of it, as it was at one moment.
type view struct {
	stream jetstream.Stream
	// first and last are the sequences at its ends: what comes later is not seen.
	first, last uint64
	// newest has the subject of each ID's newest letter.
	newest map[string]string
	// older has the subjects and sequences of letters that another one of the
	// same ID replaces under another reason.
	older map[string]uint64
}

// look takes a view of the letters that a subject filter selects. It learns
// subjects, not letters: about 150 bytes of memory each.
func (q *Queue) look(ctx context.Context, filter string) (*view, error) {
	stream, err := q.bus.JetStream().Stream(ctx, q.names.DLQStream())
	if err != nil {
		return nil, q.wrap("look", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, q.wrap("look", err)
	}
	v := &view{
		stream: stream,
		first:  info.State.FirstSeq,
		last:   info.State.LastSeq,
		newest: make(map[string]string, len(info.State.Subjects)),
		older:  map[string]uint64{},
	}
	for subject := range info.State.Subjects {
		consumer, _, key := splitSubject(q.names, subject)
		id := entryID(consumer, key)
		if key == "" {
			id = subject // of another tool, and a letter of its own
		}
		other, twice := v.newest[id]
		if !twice {
			v.newest[id] = subject
			continue
		}
		old, seq, err := q.older(ctx, stream, subject, other)
		if err != nil {
			return nil, err
		}
		if old == other {
			v.newest[id] = subject
		}
		v.older[old] = seq
	}
	return v, nil
}

// older says which of two subjects has the older letter, and its sequence; a
// letter that is gone by now has sequence 0.
func (q *Queue) older(ctx context.Context, stream jetstream.Stream, a, b string) (string, uint64, error) {
	var seqs [2]uint64
	for i, subject := range [2]string{a, b} {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return "", 0, q.wrap("read "+subject, err)
		}
		seqs[i] = m.Sequence
	}
	if seqs[0] < seqs[1] {
		return a, seqs[0], nil
	}
	return b, seqs[1], nil
}

// span is a range of sequences, both ends included.
type span struct{ from, to uint64 }

// all is the span of a whole view.
func (v *view) all() span { return span{from: v.first, to: v.last} }

// scan visits the headers of the letters in a span of v that match f, oldest
// first. Data stays at the server, which forgets the scan at its end. An error
// of visit ends the scan and is returned as it is.
func (q *Queue) scan(ctx context.Context, v *view, in span, f Filter, visit func(e Entry) error) error {
	if len(v.newest) == 0 {
		return nil
	}
	js, stream := q.bus.JetStream(), q.names.DLQStream()
	cfg := jetstream.ConsumerConfig{
		Description:       "dead-letter listing",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       in.from,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubject:     f.subject(q.names),
		HeadersOnly:       true,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: scanIdle,
	}
	cons, err := js.CreateConsumer(ctx, stream, cfg)
	if err != nil {
		return q.wrap("scan", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		if err := js.DeleteConsumer(ctx, stream, cons.CachedInfo().Name); err != nil {
			return // the server forgets the scan after scanIdle
		}
	}()
	if cons.CachedInfo().NumPending == 0 {
		return nil
	}
	batchSize := int(min(scanBatch, in.to-in.from+1))
	s := scanner{queue: q, view: v, last: in.to, filter: f, visit: visit}
	for !s.done {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("dlq: scan: %w", err)
		}
		batch, err := cons.FetchNoWait(batchSize)
		if err != nil {
			return q.wrap("scan", err)
		}
		n := 0
		for m := range batch.Messages() {
			if n++; err == nil && !s.done {
				err = s.take(m)
			}
		}
		if err != nil {
			return err
		}
		if err := batch.Error(); err != nil {
			return q.wrap("scan", err)
		}
		if n == 0 { // the letters at the end may have been removed since
			info, err := cons.Info(ctx)
			if err != nil {
				return q.wrap("scan", err)
			}
			s.done = info.NumPending == 0
		}
	}
	return nil
}

// scanner is one scan under way.
type scanner struct {
	queue     *Queue
	view      *view
	last      uint64
	filter    Filter
	visit     func(Entry) error
	delivered uint64
	done      bool
}

func (s *scanner) take(m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return s.queue.wrap("scan", err)
	}
	// Nothing is acknowledged here, so a delivery that got lost on the way
	// would be a letter silently missing.
	if s.delivered++; meta.Sequence.Consumer != s.delivered {
		return fmt.Errorf("dlq: scan: %w: a letter was lost on the way", bus.ErrUnavailable)
	}
	s.done = meta.NumPending == 0 || meta.Sequence.Stream >= s.last
	if meta.Sequence.Stream > s.last {
		return nil
	}
	if _, old := s.view.older[m.Subject()]; old {
		return nil
	}
	size, err := strconv.Atoi(m.Headers().Get(nats.MsgSize))
	if err != nil {
		size = 0
	}
	e := parseEntry(s.queue.names, m.Subject(), meta.Sequence.Stream, meta.Timestamp, m.Headers(), size)
	if !s.filter.matches(s.queue.names, &e) {
		return nil
	}
	return s.visit(e)
}

// read fetches one letter by its sequence.
func (q *Queue) read(ctx context.Context, stream jetstream.Stream, sequence uint64) (*letter, error) {
	m, err := stream.GetMsg(ctx, sequence)
	if err != nil {
		return nil, q.wrap("read letter "+strconv.FormatUint(sequence, 10), err)
	}
	return q.letterOf(m), nil
}

func (q *Queue) letterOf(m *jetstream.RawStreamMsg) *letter {
	return &letter{
		entry:  parseEntry(q.names, m.Subject, m.Sequence, m.Time, m.Header, len(m.Data)),
		header: m.Header,
		data:   m.Data,
	}
}

// wrap says what the server's answer means and what to do about it.
func (q *Queue) wrap(doing string, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("dlq: %s: %w: stream %s does not exist; \"farandole topology apply\" creates it",
			doing, bus.ErrNoStream, q.names.DLQStream())
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return fmt.Errorf("dlq: %s: %w", doing, ErrNotFound)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, jetstream.ErrNoHeartbeat), errors.Is(err, jetstream.ErrConsumerDeleted):
		return fmt.Errorf("dlq: %s: %w: %w", doing, bus.ErrUnavailable, err)
	}
	return fmt.Errorf("dlq: %s: %w", doing, err)
}
