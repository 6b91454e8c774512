package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// Import stores the letters that [Queue.Export] has written, also for another system. A
// letter that is there stays as it is ([Exists]), and one whose event is handled, or is
// under way, is left out. Letters are imported as parked; their story says by whom. An event
// of which the ledger has no mark takes Force to be replayed. report, which may be nil, is
// called for each letter. The error says why Import ended early: the letter that it names
// cannot be read, or what would hit every letter. Running it again is harmless.
func (q *Queue) Import(ctx context.Context, r io.Reader, by string, report func(Result)) (Summary, error) {
	sum := Summary{Counts: map[Status]int{}}
	s, err := q.stream()
	if err != nil {
		return sum, err
	}
	in := json.NewDecoder(r)
	for {
		var record Record
		if err := in.Decode(&record); errors.Is(err, io.EOF) {
			return sum, nil
		} else if err != nil {
			return sum, fmt.Errorf("dlq: import: letter %d: %w", sum.Selected+1, err)
		}
		sum.Selected++
		result := Result{ID: record.ID, Selected: sum.Selected}
		result.Status, result.Err = s.bringIn(ctx, record, by)
		if result.Err != nil {
			result.Message = result.Err.Error()
		}
		sum.Counts[result.Status]++
		if report != nil {
			report(result)
		}
		if ctx.Err() != nil || hopeless(result.Err) {
			return sum, errors.Join(result.Err, ctx.Err())
		}
	}
}

// bringIn stores one letter.
func (s *Stream) bringIn(ctx context.Context, r Record, by string) (Status, error) {
	if r.Consumer == ConsumerOutbox {
		return Refused, fmt.Errorf("%w: %s is a row of a database: it is imported there", ErrRefused, r.ID)
	}
	if err := r.Consumer.Validate(); err != nil || !isToken(r.Reason) || !isSubject(string(r.EventKey)) || r.ID != entryID(r.Consumer, r.EventKey) {
		return Refused, fmt.Errorf("%w: %q: consumer, reason and event key of an export are missing, or do not agree with its id", ErrRefused, r.ID)
	}
	m, known, err := s.mark(ctx, r.Consumer, r.EventKey)
	switch {
	case err != nil:
		return Failed, err
	case known && m.State == StateDone:
		return AlreadyHandled, nil
	case known && m.underWay():
		return InProgress, nil
	}
	switch _, err := s.find(ctx, r.ID); {
	case err == nil:
		return Exists, nil
	case !errors.Is(err, ErrNotFound):
		return Failed, err
	}
	msg, err := s.letterFrom(r, by)
	if err == nil {
		_, err = s.publish(ctx, msg)
	}
	switch {
	case errors.Is(err, bus.ErrConflict):
		return Exists, nil
	case err != nil:
		return Failed, fmt.Errorf("dlq: import %s: %w", r.ID, err)
	}
	return Imported, nil
}

// letterFrom makes the message of an exported letter.
func (s *Stream) letterFrom(r Record, by string) (*nats.Msg, error) {
	m := &nats.Msg{
		Subject: s.names.DeadLetterSubject(r.Consumer, r.Reason, r.EventKey),
		Header:  originals(r.Headers),
		Data:    r.Data,
	}
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
	p, err := newPacker(m, s.bus.Conn().MaxPayload())
	if err != nil {
		return nil, err
	}
	past := past{
		letters: r.Count, subject: r.Origin.Subject, stream: r.Origin.Stream, stored: formatTime(r.Origin.Time),
		firstAt: formatTime(r.FirstFailure), firstClass: encode(cut(r.FirstClass, 128)), firstError: r.FirstError,
		attempts: r.Attempts, changes: append(r.Changes, Change{At: time.Now().UTC(), By: by, What: "imported"}),
		renamed: map[string][]string{},
	}
	if r.Origin.Sequence > 0 {
		past.sequence = strconv.FormatUint(r.Origin.Sequence, 10)
	}
	for name, values := range r.Headers {
		if hasPrefixFold(name, prefixOriginal) {
			past.renamed[name] = values
		}
	}
	attributes := structuredAttributes(m)
	sayCut := p.reserve(bus.FieldSize(headerCut, "1"))
	p.cut = r.Cut
	p.put(headerClass, encode(cut(r.Class, 128)))
	p.put(headerFingerprint, r.Fingerprint)
	p.put(headerParked, formatTime(r.Stored))
	p.put(headerFailures, formatCount(r.Failures))
	p.put(headerCrashes, formatCount(r.Crashes))
	p.put(headerLastFailure, formatTime(r.LastFailure))
	p.putText(headerError, r.Error)
	p.put(headerConsumer, string(r.Consumer))
	p.put(headerReason, r.Reason)
	p.put(headerEventKey, string(r.EventKey))
	p.put(headerHost, encode(r.Host))
	p.put(headerVersion, encode(r.Version))
	for _, name := range sortedKeys(attributes) {
		p.put(prefixAttribute+name, encode(attributes[name]))
	}
	p.putPast(past)
	sayCut()
	return m, nil
}
