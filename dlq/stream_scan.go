package dlq

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

const (
	// scanBatch is how many letters, without their data, are asked for at once.
	scanBatch = 1000
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
	// old has the subjects of letters that another one of the same ID replaces
	// under another reason, older the sequences of these by ID.
	old   map[string]bool
	older map[string][]uint64
}

// view returns a view of the letters that a subject filter selects. It learns
// subjects, not letters: about 150 bytes of memory each.
func (s *Stream) view(ctx context.Context, filter string) (*view, error) {
	stream, err := s.askForStream(ctx)
	if err != nil {
		return nil, err
	}
	info, err := s.subjects(ctx, stream, filter)
	if err != nil {
		return nil, s.wrap("look", err)
	}
	v := &view{
		stream: stream,
		first:  info.State.FirstSeq,
		last:   info.State.LastSeq,
		newest: make(map[string]string, len(info.State.Subjects)),
		old:    map[string]bool{},
		older:  map[string][]uint64{},
	}
	for subject := range info.State.Subjects {
		consumer, _, key := splitSubject(s.names, subject)
		id := entryID(consumer, key)
		if key == "" {
			id = subject // of another tool, and a letter of its own
		}
		other, twice := v.newest[id]
		if !twice {
			v.newest[id] = subject
			continue
		}
		old, sequence, err := s.olderOf(ctx, stream, subject, other)
		if err != nil {
			return nil, err
		}
		if old == other {
			v.newest[id] = subject
		}
		v.old[old] = true
		v.older[id] = append(v.older[id], sequence)
	}
	return v, nil
}

// subjects asks what a stream holds on a filter.
func (s *Stream) subjects(ctx context.Context, stream jetstream.Stream, filter string) (info *jetstream.StreamInfo, err error) {
	err = s.bus.Ask(ctx, "STREAM.INFO."+stream.CachedInfo().Config.Name, func(ctx context.Context) (err error) {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(filter))
		return err
	})
	return info, err
}

// olderOf says which of two subjects has the older letter, and its sequence; a
// letter that is gone by now has sequence 0.
func (s *Stream) olderOf(ctx context.Context, stream jetstream.Stream, a, b string) (string, uint64, error) {
	var seqs [2]uint64
	for i, subject := range [2]string{a, b} {
		m, err := s.bus.Read(ctx, stream, subject)
		if err != nil {
			return "", 0, s.wrap("read "+subject, err)
		}
		if m != nil {
			seqs[i] = m.Sequence
		}
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

// Scan visits the letters that match f and were there when it began, oldest
// first. It reads their headers; with whole it then reads the letters one by one,
// and leaves out what has been removed meanwhile.
func (s *Stream) Scan(ctx context.Context, f Filter, whole bool, visit func(Record) error) error {
	if err := f.validate(); err != nil {
		return err
	}
	v, err := s.view(ctx, consumerSubject(s.names, ""))
	if err != nil {
		return err
	}
	follow := s.follower()
	if !whole {
		return s.scan(ctx, v, v.all(), f, func(e Entry) error {
			if err := follow.look(ctx, &e); err != nil {
				return err
			}
			return visit(Record{Entry: e, older: v.older[e.ID]})
		})
	}
	var sequences []uint64
	err = s.scan(ctx, v, v.all(), f, func(e Entry) error {
		sequences = append(sequences, e.Sequence)
		return nil
	})
	if err != nil {
		return err
	}
	for _, sequence := range sequences {
		l, err := s.read(ctx, sequence)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err == nil {
			err = follow.look(ctx, &l.entry)
		}
		if err == nil {
			err = visit(l.record())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scan visits the headers of the letters in a span of v that match f, oldest
// first. Data stays at the server. An error of visit ends the scan and is
// returned as it is.
func (s *Stream) scan(ctx context.Context, v *view, in span, f Filter, visit func(e Entry) error) error {
	if len(v.newest) == 0 {
		return nil
	}
	var failed error
	cfg := bus.ScanConfig{
		Filter: f.subject(s.names), From: in.from, HeadersOnly: true, Batch: int(min(scanBatch, in.to-in.from+1)),
	}
	err := s.bus.ScanMessages(ctx, s.names.DLQStream(), cfg, func(m *nats.Msg, meta *nats.MsgMetadata) (bool, error) {
		if meta.Sequence.Stream > in.to {
			return false, nil
		}
		if !v.old[m.Subject] {
			size, err := strconv.Atoi(m.Header.Get(nats.MsgSize))
			if err != nil {
				size = 0
			}
			e := parseEntry(s.names, m.Subject, meta.Sequence.Stream, meta.Timestamp, m.Header, size)
			if f.Matches(s.names, e) {
				failed = visit(e)
			}
		}
		return failed == nil && meta.Sequence.Stream < in.to, nil
	})
	if err != nil {
		return s.wrap("scan", err)
	}
	return failed
}
