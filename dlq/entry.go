package dlq

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// Entry is one dead letter as far as its headers tell: what a list shows. A
// letter with damaged or missing headers is an Entry with empty fields. Its
// JSON is stable; times are RFC 3339, absent when unknown.
type Entry struct {
	// ID is <consumer>.<event key>, or outbox.<message id> of a parked row. There is
	// one entry of an ID: the newest letter.
	ID string `json:"id"`
	// Sequence is the letter's place in its store: the sequence in the dead-letter
	// stream, or the id of the row.
	Sequence uint64 `json:"sequence"`
	// Stored is when it was dead-lettered, by the clock of the server, or of the relay
	// that parked the row; ages count from it. A replay does not change it.
	Stored   time.Time      `json:"stored"`
	Consumer event.Consumer `json:"consumer"`
	Reason   string         `json:"reason"`
	EventKey event.EventKey `json:"event_key"`

	// Attributes of the event; empty when it cannot be decoded.
	EventID string `json:"event_id,omitempty"`
	Source  string `json:"source,omitempty"`
	Type    string `json:"type,omitempty"`
	// Key is, of an event that cannot be decoded, the one that its subject tells.
	Key           event.Key `json:"key,omitempty"`
	CorrelationID string    `json:"correlation_id,omitempty"`

	// Class and Error are those of the last failed attempt.
	Class string `json:"class,omitempty"`
	Error string `json:"error,omitempty"`
	// Fingerprint names the kind of failure: 12 hex digits, the same for the same
	// class, type and error text but for numbers, ids and quoted strings in it.
	Fingerprint string `json:"fingerprint"`
	// Count is how often the event was dead-lettered: 1 + its replays.
	Count       int       `json:"count"`
	Failures    int       `json:"failures"` // attempts since the last replay
	Crashes     int       `json:"crashes"`
	LastFailure time.Time `json:"last_failure,omitzero"`
	// The first failure of all, kept across replays.
	FirstFailure time.Time `json:"first_failure,omitzero"`
	FirstClass   string    `json:"first_class,omitempty"`
	FirstError   string    `json:"first_error,omitempty"`

	Host    string `json:"host,omitempty"` // who parked it
	Version string `json:"version,omitempty"`
	Origin  Origin `json:"origin"`
	// Size of the event's data in bytes.
	Size int `json:"size"`
	// Cut says that not all of the story fitted beside the event.
	Cut bool `json:"cut,omitempty"`
	// Replay is there while the letter is being replayed.
	Replay *Replaying `json:"replay,omitempty"`
}

// State is one word about the letter: its reason, or "replayed".
func (e Entry) State() string {
	if e.Replay != nil {
		return string(Replayed)
	}
	return e.Reason
}

// Complete fills in what follows from the rest and is missing: Type from the
// subject of the origin, and Fingerprint.
func (e *Entry) Complete(n event.Names) {
	e.Type = cmp.Or(e.Type, typeOfSubject(n, e.Origin.Subject))
	if e.Fingerprint == "" {
		e.Fingerprint = fingerprint(e.Class, e.Error, e.Type)
	}
}

// Record is a letter with everything: what show and export give. Data is exact
// in DataBase64, and readable in Data when it is UTF-8; it is never decoded as
// JSON, so no number in it changes.
type Record struct {
	Entry
	Attempts []event.Attempt `json:"attempts"` // over all replays, oldest first
	// Changes are what people have done to the letter, oldest first.
	Changes []Change `json:"changes,omitempty"`
	// Headers are those of the event as the consumer got it, with server
	// control headers under their renamed names.
	Headers map[string][]string `json:"headers"`
	Data    []byte              `json:"data_base64"`

	// older are the sequences of letters that this one replaces.
	older []uint64
}

// MarshalJSON adds "data": the data as text, when it is UTF-8.
func (r Record) MarshalJSON() ([]byte, error) {
	type record Record
	doc := struct {
		record
		Text *string `json:"data,omitempty"`
	}{record: record(r)}
	if utf8.Valid(r.Data) {
		s := string(r.Data)
		doc.Text = &s
	}
	return json.Marshal(doc)
}

// letter is a stored dead letter.
type letter struct {
	entry   Entry
	subject string
	header  nats.Header
	data    []byte
	// older are the sequences of letters that this one replaces.
	older []uint64
}

func (l *letter) record() Record {
	headers := map[string][]string(originals(l.header))
	for name, values := range l.header {
		if hasPrefixFold(name, prefixOriginal) {
			headers[name] = values
		}
	}
	return Record{
		Entry:    l.entry,
		Attempts: parseAttempts(first(l.header, headerAttempts)),
		Changes:  changesOf(l.header),
		Headers:  headers,
		Data:     l.data,
	}
}

// parseEntry reads what the subject and headers of a stored letter tell.
func parseEntry(n event.Names, subject string, sequence uint64, stored time.Time, h nats.Header, size int) Entry {
	consumer, reason, key := splitSubject(n, subject)
	e := Entry{
		ID:            entryID(consumer, key),
		Sequence:      sequence,
		Stored:        stored,
		Consumer:      consumer,
		Reason:        reason,
		EventKey:      key,
		EventID:       attribute(h, "id"),
		Source:        attribute(h, "source"),
		Type:          attribute(h, "type"),
		CorrelationID: attribute(h, event.ExtCorrelation),
		Class:         text(h, headerClass),
		Error:         text(h, headerError),
		Fingerprint:   first(h, headerFingerprint),
		Count:         max(1, number(h, headerCount)),
		Failures:      number(h, headerFailures),
		Crashes:       number(h, headerCrashes),
		LastFailure:   instant(h, headerLastFailure),
		FirstFailure:  instant(h, headerFirstFailure),
		FirstClass:    text(h, headerFirstClass),
		FirstError:    text(h, headerFirstError),
		Host:          text(h, headerHost),
		Version:       text(h, headerVersion),
		Origin: Origin{
			Subject: text(h, headerSubject),
			Stream:  text(h, headerStream),
			Time:    instant(h, headerStored),
		},
		Size:   size,
		Cut:    first(h, headerCut) != "",
		Replay: replayingOf(h),
	}
	if parked := instant(h, headerParked); !parked.IsZero() {
		e.Stored = parked
	}
	e.Key = event.Key(cmp.Or(attribute(h, event.ExtKey), e.CorrelationID, e.EventID, keyOfSubject(n, e.Origin.Subject)))
	if sequence, err := strconv.ParseUint(first(h, headerSequence), 10, 64); err == nil {
		e.Origin.Sequence = sequence
	}
	e.Complete(n)
	return e
}

// splitSubject reads dlq.<consumer>.<reason>.<event key>. Other tools may have
// stored subjects of another shape below dlq.; they are listed too.
func splitSubject(n event.Names, subject string) (event.Consumer, string, event.EventKey) {
	rest := strings.TrimPrefix(subject, n.Root("dlq."))
	consumer, rest, _ := strings.Cut(rest, ".")
	reason, key, _ := strings.Cut(rest, ".")
	return event.Consumer(consumer), reason, event.EventKey(key)
}

func entryID(c event.Consumer, k event.EventKey) string { return string(c) + "." + string(k) }

// parseID reads <consumer>.<event key>, or an event key alone.
func parseID(id string) (event.Consumer, event.EventKey, error) {
	consumer, key, both := strings.Cut(id, ".")
	if !both {
		consumer, key = "", id
	}
	if both && !isToken(consumer) || !isSubject(key) {
		return "", "", invalidID(id)
	}
	return event.Consumer(consumer), event.EventKey(key), nil
}

// isToken reports whether s can stand in a subject without being read as more than one name.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || r == '*' || r == '>' || r == '.'
	})
}

// isSubject reports whether s is tokens separated by dots, none a wildcard.
func isSubject(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if !isToken(token) {
			return false
		}
	}
	return true
}
