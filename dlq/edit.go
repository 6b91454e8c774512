package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Edit is what a person changes in the event of a letter before it is replayed.
type Edit struct {
	// Data replaces the event's data. Defaults to leaving them; empty data are not nil.
	Data []byte
	// Headers are set, by their name on the wire, as in "ce-priority"; "" removes one.
	// Values of attributes are encoded ([event.EncodeAttribute]).
	Headers map[string]string
	// By is who does it, as in "ada@host".
	By string
}

// Edit changes the event of a letter and keeps its identity: id, source, type, key and
// correlation. The letter's story tells who, when, and what is different. Nothing is
// replayed. The change is zero when the event is the same as before.
//
// The error matches [ErrRefused] if the event would have another identity, or be no
// event that its consumer can read, or is being replayed; the text names what. It
// matches [bus.ErrConflict] if somebody else has changed the letter meanwhile.
func (q *Queue) Edit(ctx context.Context, id string, e Edit) (Change, error) {
	row, err := q.ofOutbox(ctx, id)
	if err != nil {
		return Change{}, err
	}
	if row {
		return Change{}, fmt.Errorf("%w: %s is a row of a database: change it there", ErrRefused, id)
	}
	s, err := q.stream()
	if err != nil {
		return Change{}, err
	}
	return s.edit(ctx, id, e)
}

func (s *Stream) edit(ctx context.Context, id string, e Edit) (Change, error) {
	l, err := s.find(ctx, id)
	if err != nil {
		return Change{}, err
	}
	return s.editLetter(ctx, l, e)
}

func (s *Stream) editLetter(ctx context.Context, l *letter, e Edit) (Change, error) {
	if err := s.follower().look(ctx, &l.entry); err != nil {
		return Change{}, err
	}
	if l.entry.Replay != nil {
		return Change{}, fmt.Errorf("%w: %s is being replayed; --cancel takes that back", ErrRefused, l.entry.ID)
	}
	before, data := originals(l.header), l.data
	after := maps.Clone(before)
	if e.Data != nil {
		data = e.Data
	}
	for name, value := range e.Headers {
		if !isOriginal(name) {
			return Change{}, fmt.Errorf("%w: %s: no event has a header of this name", ErrRefused, name)
		}
		for have := range after {
			if strings.EqualFold(have, name) {
				delete(after, have)
			}
		}
		if value != "" {
			after[name] = []string{value}
		}
	}
	if err := s.admitEdit(l, before, after, data); err != nil {
		return Change{}, err
	}
	c := Change{At: time.Now().UTC(), By: e.By, What: "edited", Diff: difference(before, after, l.data, data)}
	if c.Diff == "" {
		return Change{}, nil
	}
	changes := append(changesOf(l.header), c)
	attributes := structuredAttributes(&nats.Msg{Header: after, Data: data})
	for name := range before {
		delete(l.header, name)
	}
	maps.Copy(l.header, after)
	delete(l.header, headerChanges)
	l.data = data
	for name := range attributes {
		delete(l.header, prefixAttribute+name)
	}
	return c, s.rewrite(ctx, l, func(p *packer) error {
		for _, name := range sortedKeys(attributes) {
			p.put(prefixAttribute+name, encode(attributes[name]))
		}
		p.putChanges(changes)
		return nil
	})
}

// identity are the attributes that an edit keeps.
func identity() []string {
	return []string{"id", "source", "type", event.ExtKey, event.ExtCorrelation}
}

// admitEdit refuses what would be another event, or none.
func (s *Stream) admitEdit(l *letter, before, after nats.Header, data []byte) error {
	edited, err := event.Decode(after, data)
	if err == nil {
		err = s.names.CheckSubject(l.entry.Origin.Subject, edited)
	}
	if err == nil && strings.HasPrefix(edited.DataMediaType(), event.ContentTypeJSON) && len(edited.Data()) > 0 && !json.Valid(edited.Data()) {
		err = fmt.Errorf("%w: the data is not JSON, which datacontenttype says that it is", event.ErrDecode)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: what it would be is no event: %w", ErrRefused, l.entry.ID, err)
	}
	was := attributesOf(before, l.data)
	is := attributesOf(after, data)
	var other []string
	for _, name := range identity() {
		if was[name] != "" && was[name] != is[name] {
			other = append(other, fmt.Sprintf("%s is %q, not %q", name, is[name], was[name]))
		}
	}
	if len(other) > 0 {
		return fmt.Errorf("%w: %s would be another event: %s", ErrRefused, l.entry.ID, strings.Join(other, "; "))
	}
	return nil
}

// attributesOf reads an event's identity, as far as it can be read.
func attributesOf(h nats.Header, data []byte) map[string]string {
	attributes := structuredAttributes(&nats.Msg{Header: h, Data: data})
	if attributes == nil {
		attributes = map[string]string{}
		for _, name := range identity() {
			attributes[name] = attribute(h, name)
		}
	}
	return attributes
}

// move gives a letter to another consumer: its service was renamed. The letter is stored
// under the new name before the old one is closed in the ledger and removed; when that is
// interrupted it can be run again. A letter that the other consumer has of the event stays.
func (s *Stream) move(ctx context.Context, l *letter, to event.Consumer, by string) error {
	moved := *l
	from := l.entry.Consumer
	moved.header = maps.Clone(l.header)
	moved.subject = s.names.DeadLetterSubject(to, l.entry.Reason, l.entry.EventKey)
	moved.entry.ID, moved.entry.Sequence = entryID(to, l.entry.EventKey), 0
	changes := append(changesOf(l.header), Change{At: time.Now().UTC(), By: by, What: "moved from " + string(from)})
	delete(moved.header, headerChanges)
	moved.header[headerConsumer] = []string{string(to)}
	err := s.rewrite(ctx, &moved, func(p *packer) error {
		p.putChanges(changes)
		return nil
	})
	if err != nil && !errors.Is(err, bus.ErrConflict) {
		return err
	}
	if s.marks != nil {
		if err := s.marks.Discard(ctx, from, l.entry.EventKey); err != nil {
			return fmt.Errorf("dlq: move %s: %w", l.entry.ID, err)
		}
	}
	return s.remove(ctx, l)
}
