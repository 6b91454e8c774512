package events

import (
	"encoding/json"
	"maps"

	"github.com/farandole/farandole/event"
)

// Steps remembers, inside a service's state, what each event led to. It is
// written in the same compare-and-set as the state it led to, so a handler
// that runs again for the same event (after a crash between that write and the
// completion of the step) returns the same drafts in the same order, and the
// state is not applied twice. An order has a handful of steps.
type Steps map[event.EventKey][]Sent

// Sent is one emitted event as Steps keeps it.
type Sent struct {
	Type event.Type      `json:"type"`
	Key  event.Key       `json:"key"`
	Data json.RawMessage `json:"data"`
}

// Of returns what the event led to; ok is false when it is new.
func (s Steps) Of(cause event.Event) (drafts []event.Draft, ok bool) {
	sent, ok := s[event.EventKeyOf(cause)]
	for _, x := range sent {
		drafts = append(drafts, event.Draft{Type: x.Type, Key: x.Key, ContentType: event.ContentTypeJSON, Data: x.Data})
	}
	return drafts, ok
}

// With returns a copy of s in which cause has led to drafts.
func (s Steps) With(cause event.Event, drafts []event.Draft) Steps {
	next := maps.Clone(s)
	if next == nil {
		next = Steps{}
	}
	sent := make([]Sent, 0, len(drafts))
	for _, d := range drafts {
		sent = append(sent, Sent{Type: d.Type, Key: d.Key, Data: d.Data})
	}
	next[event.EventKeyOf(cause)] = sent
	return next
}
