package payment

import (
	"encoding/json"
	"maps"

	"github.com/farandole/farandole/event"
)

// Emitted remembers which events the service emitted in answer to each event
// about an order. It is written together with the order's new status, in one
// compare-and-set. A handler that runs again for the same event, because the
// process died between that write and the end of the step, finds it here. It
// returns the same events in the same order and leaves the status alone.
type Emitted map[event.EventKey][]emitted

// emitted is one emitted event as it is stored.
type emitted struct {
	Type event.Type      `json:"type"`
	Key  event.Key       `json:"key"`
	Data json.RawMessage `json:"data"`
}

// For returns what was emitted in answer to cause; ok is false if cause is new.
func (m Emitted) For(cause event.Event) (drafts []event.Draft, ok bool) {
	all, ok := m[event.EventKeyOf(cause)]
	for _, e := range all {
		drafts = append(drafts, event.Draft{Type: e.Type, Key: e.Key, ContentType: event.ContentTypeJSON, Data: e.Data})
	}
	return drafts, ok
}

// With returns a copy of m that also holds drafts, the answer to cause.
func (m Emitted) With(cause event.Event, drafts []event.Draft) Emitted {
	next := maps.Clone(m)
	if next == nil {
		next = Emitted{}
	}
	all := make([]emitted, 0, len(drafts))
	for _, d := range drafts {
		all = append(all, emitted{Type: d.Type, Key: d.Key, Data: d.Data})
	}
	next[event.EventKeyOf(cause)] = all
	return next
}
