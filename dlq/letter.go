package dlq

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Story is why and how a message failed: what a dead letter adds to it.
type Story struct {
	Consumer event.Consumer
	Reason   string // one of bus.Reason…
	Key      event.EventKey
	// Attempts are the failed attempts since the last replay, oldest first; the last one says why.
	Attempts []event.Attempt
	// Failures counts all of them, Crashes the runs that ended without an outcome.
	Failures, Crashes int
	Host, Version     string // who parked it
	At                time.Time
}

// Origin is where the event was first stored.
type Origin struct {
	// Subject is known of letters; [Letter] takes it from the message.
	Subject  string    `json:"subject,omitempty"`
	Stream   string    `json:"stream,omitempty"`
	Sequence uint64    `json:"sequence,omitempty"`
	Time     time.Time `json:"time,omitzero"`
}

// Letter makes the dead-letter message of a failed message: its data and
// headers as they are, plus dlq- headers that tell the story. Server control
// headers (Nats-...) become dlq-original-Nats-..., so none takes effect again.
// The letter of a replayed message keeps the origin, the first failure and the
// attempts of earlier letters.
//
// It stands for itself on dlq.<consumer>.<reason>.<event key>: parking again
// after a crash replaces the letter. The data is shared with failed, not copied.
//
// maxPayload is the server's max_payload in bytes ([nats.Conn.MaxPayload]; 0
// for no limit); headers count towards it. What does not fit is shortened or
// left out, the history first, and the letter says so: parking works for every
// message that the server took. The error matches [bus.ErrTooLarge] only when
// the message without its control headers exceeds the limit by itself.
//
// Not kept: the order of different headers, white space at the end of a
// header's value, and control characters in it, which the client cannot send.
func Letter(n event.Names, failed *nats.Msg, from Origin, s Story, maxPayload int64) (*nats.Msg, error) {
	m := &nats.Msg{
		Subject: n.DeadLetterSubject(s.Consumer, s.Reason, s.Key),
		Header:  originals(failed.Header),
		Data:    failed.Data,
	}
	p, err := newPacker(m, maxPayload)
	if err != nil {
		return nil, fmt.Errorf("dlq: letter %s: %w", m.Subject, err)
	}
	last := event.Attempt{Class: s.Reason, At: s.At}
	if len(s.Attempts) > 0 {
		last = s.Attempts[len(s.Attempts)-1]
	}
	past := pastOf(n, failed, from, s)
	attributes := structuredAttributes(failed)
	eventType := cmp.Or(attributes["type"], attribute(failed.Header, "type"), typeOfSubject(n, past.subject))

	// The most important first: the subject has consumer, reason and event
	// key, so what a replay needs besides is the count and the subject.
	sayCut := p.reserve(bus.FieldSize(headerCut, "1"))
	p.put(headerCount, strconv.Itoa(past.letters+1))
	p.put(headerSubject, encode(past.subject))
	p.put(headerClass, encode(cut(last.Class, 128)))
	p.put(headerFingerprint, fingerprint(last.Class, last.Error, eventType))
	p.put(headerStream, encode(past.stream))
	p.put(headerSequence, past.sequence)
	p.put(headerFailures, formatCount(s.Failures))
	p.put(headerCrashes, formatCount(s.Crashes))
	p.put(headerLastFailure, formatTime(last.At))
	p.putText(headerError, last.Error)
	p.put(headerFirstFailure, past.firstAt)
	p.put(headerFirstClass, past.firstClass)
	p.putText(headerFirstError, past.firstError)
	p.put(headerStored, past.stored)
	p.put(headerTime, formatTime(s.At))
	p.put(headerConsumer, string(s.Consumer))
	p.put(headerReason, s.Reason)
	p.put(headerEventKey, string(s.Key))
	p.put(headerHost, encode(s.Host))
	p.put(headerVersion, encode(s.Version))
	for _, name := range sortedKeys(attributes) {
		p.put(prefixAttribute+name, encode(attributes[name]))
	}
	for _, name := range sortedKeys(past.renamed) {
		for _, value := range past.renamed[name] {
			p.put(name, value)
		}
	}
	p.putChanges(past.changes)
	p.putAttempts(headerAttempts, past.attempts)
	sayCut()
	return m, nil
}

// past is what a letter says of the time before its last failure. Strings that
// are values of headers are encoded already, but for subject, stream and firstError.
type past struct {
	replays          int // the number of the last one
	letters          int // of the event, before this one
	subject, stream  string
	sequence, stored string
	firstAt          string
	firstClass       string
	firstError       string
	attempts         []event.Attempt
	changes          []Change
	renamed          map[string][]string
}

// pastOf takes it from what a message that came by redrive carries, else from
// the failed message itself.
func pastOf(n event.Names, failed *nats.Msg, from Origin, s Story) past {
	redrive, ok := RedriveOf(failed.Header)
	if !ok || !n.IsRedrive(s.Consumer, failed.Subject) {
		return firstPast(failed, from, s)
	}
	p := carriedPast(failed.Header)
	p.replays = redrive.Replay
	p.letters = cmp.Or(p.letters, redrive.Replay) // not the same: a replay that was taken back has a number, and no letter
	p.subject = cmp.Or(p.subject, failed.Subject)
	p.attempts = slices.Concat(p.attempts, s.Attempts)
	if redrive.Replay == 0 { // a deferred retry: the first failure is in the ledger
		begin := firstPast(failed, from, s)
		p.firstAt, p.firstClass, p.firstError = begin.firstAt, begin.firstClass, begin.firstError
	}
	return p
}

// carriedPast is what a letter or a redrive says of it.
func carriedPast(h nats.Header) past {
	p := past{
		letters:    number(h, headerCount),
		subject:    text(h, headerSubject),
		stream:     text(h, headerStream),
		sequence:   first(h, headerSequence),
		stored:     first(h, headerStored),
		firstAt:    first(h, headerFirstFailure),
		firstClass: first(h, headerFirstClass),
		firstError: text(h, headerFirstError),
		attempts:   parseAttempts(first(h, headerAttempts)),
		changes:    changesOf(h),
		renamed:    map[string][]string{},
	}
	for name, values := range h {
		if hasPrefixFold(name, prefixOriginal) {
			p.renamed[name] = values
		}
	}
	return p
}

func firstPast(failed *nats.Msg, from Origin, s Story) past {
	begin := event.Attempt{Class: s.Reason, At: s.At}
	if len(s.Attempts) > 0 {
		begin = s.Attempts[0]
	}
	p := past{
		subject:    failed.Subject,
		stream:     from.Stream,
		stored:     formatTime(from.Time),
		firstAt:    formatTime(begin.At),
		firstClass: encode(cut(begin.Class, 128)),
		firstError: begin.Error,
		attempts:   s.Attempts,
		renamed:    map[string][]string{},
	}
	if from.Sequence > 0 {
		p.sequence = strconv.FormatUint(from.Sequence, 10)
	}
	for name, values := range failed.Header {
		if !isOriginal(name) {
			p.renamed[originalName(name)] = values
		}
	}
	return p
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
