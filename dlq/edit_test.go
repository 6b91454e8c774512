package dlq_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func TestEdited_event_keeps_its_identity_and_tells_who_changed_what(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	before := f.get(1).Letter
	c, err := f.queue.Edit(t.Context(), id(1), dlq.Edit{
		Data: []byte(`{"amount":5,"z":1.0,"a":1}`), Headers: map[string]string{"ce-priority": "high"}, By: "ada@host",
	})
	f.check(err)
	want := "+ ce-priority: high\n-   \"amount\": 9007199254740993,\n+   \"amount\": 5,\n"
	if c.Diff != want || c.By != "ada@host" || c.What != "edited" {
		t.Errorf("change %+v, want\n%s", c, want)
	}
	after := f.get(1).Letter
	if after.EventID != before.EventID || after.Key != before.Key || after.Error != before.Error || !after.Stored.Equal(before.Stored) ||
		after.Count != 1 || len(after.Changes) != 1 || after.Changes[0].Diff != want {
		t.Errorf("letter %+v", after)
	}
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	m := f.stored(f.names.RedriveFilter("payment"))[0]
	if string(m.Data) != `{"amount":5,"z":1.0,"a":1}` || m.Header.Get("ce-priority") != "high" || m.Header.Get("ce-id") != "id-1" {
		t.Errorf("replayed %s %v", m.Data, m.Header)
	}
	// The story outlives a failed replay.
	f.parkAgain("payment", 1, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, event.ReasonExhausted)
	if l := f.get(1).Letter; l.Count != 2 || len(l.Changes) != 1 || l.Changes[0].By != "ada@host" {
		t.Errorf("after another failure: %+v", l)
	}
	c, err = f.queue.Edit(t.Context(), id(1), dlq.Edit{Data: m.Data})
	if f.check(err); c.What != "" || len(f.get(1).Letter.Changes) != 1 {
		t.Errorf("nothing changed: %+v", c)
	}
}

func TestEdit_is_refused_by_name(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	for name, tt := range map[string]struct {
		edit dlq.Edit
		want string
	}{
		"another id":     {dlq.Edit{Headers: map[string]string{"Ce-Id": "id-2"}}, `id is "id-2", not "id-1"`},
		"another source": {dlq.Edit{Headers: map[string]string{"ce-source": "/other"}}, `source is "/other", not "/order"`},
		"another key":    {dlq.Edit{Headers: map[string]string{"ce-partitionkey": "ord-2"}}, `partitionkey: "ord-2" on subject`},
		"no id":          {dlq.Edit{Headers: map[string]string{"ce-id": ""}}, "is no event"},
		"control header": {dlq.Edit{Headers: map[string]string{"Nats-Rollup": "all"}}, "Nats-Rollup: no event has a header of this name"},
		"own header":     {dlq.Edit{Headers: map[string]string{"dlq-count": "9"}}, "dlq-count: no event has"},
		"structured":     {dlq.Edit{Headers: map[string]string{"content-type": "application/cloudevents+json"}}, "is no event"},
		"no JSON": {
			dlq.Edit{Headers: map[string]string{"ce-datacontenttype": "application/json"}, Data: []byte("{")}, "the data is not JSON",
		},
	} {
		_, err := f.queue.Edit(t.Context(), id(1), tt.edit)
		if !errors.Is(err, dlq.ErrRefused) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if l := f.get(1).Letter; len(l.Changes) != 0 || !bytes.Equal(l.Data, f.event(1).Data) {
		t.Errorf("changed: %+v", l)
	}
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	if _, err := f.queue.Edit(t.Context(), id(1), dlq.Edit{Data: []byte("{}")}); !errors.Is(err, dlq.ErrRefused) || !strings.Contains(err.Error(), "being replayed") {
		t.Errorf("while it is replayed: %v", err)
	}
	if _, err := f.queue.Edit(t.Context(), id(2), dlq.Edit{}); !errors.Is(err, dlq.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}

func TestMessage_that_was_no_event_can_be_mended(t *testing.T) {
	t.Parallel()
	f := setup(t)
	m := f.event(1)
	m.Header = nats.Header{}
	m.Data = []byte(`{"specversion":"1.0","id":"id-1","source":"/order","type":"order.placed.v1","partitionkey":"ord-1","data":{"amount":}}`)
	f.parkAgain("payment", 1, m, event.ReasonDecode)
	_, err := f.queue.Edit(t.Context(), id(1), dlq.Edit{Data: bytes.Replace(m.Data, []byte(`"amount":`), []byte(`"amount":7`), 1)})
	f.check(err)
	if l := f.get(1).Letter; l.EventID != "id-1" || l.Key != "ord-1" || l.EventKey != key(1) {
		t.Errorf("%+v", l.Entry)
	}
}

func TestLetters_of_a_renamed_service_are_given_to_it(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 3 {
		f.park("payment", n)
	}
	f.ledger.set("billing", key(2), dlq.Mark{State: dlq.StateDone}) // it has handled that one
	to := dlq.ReplayOptions{To: "billing", By: "ada@host"}
	sum, _ := f.replay(dlq.Selection{All: true}, to)
	f.expect(sum, map[dlq.Status]int{dlq.NoConsumer: 3})
	if _, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{To: "Bad name"}, nil); !errors.Is(err, dlq.ErrSelection) {
		t.Errorf("illegal name: %v", err)
	}
	f.start("billing")
	sum, results := f.replay(dlq.Selection{All: true}, to)
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 2, dlq.AlreadyHandled: 1})
	if results[0].ID != "billing."+string(key(0)) {
		t.Errorf("result of %s", results[0].ID)
	}
	p := f.list(dlq.Filter{}, dlq.PageOptions{})
	if p.Total != 2 || len(f.stored(f.names.RedriveFilter("billing"))) != 2 || len(f.stored(f.names.RedriveFilter("payment"))) != 0 {
		t.Errorf("%d letters: %+v", p.Total, p.Entries)
	}
	for _, e := range p.Entries {
		if e.Consumer != "billing" || e.Replay == nil || e.Error == "" {
			t.Errorf("%+v", e)
		}
	}
	c, err := f.queue.Get(t.Context(), "billing."+string(key(0)))
	f.check(err)
	if len(c.Letter.Changes) != 1 || c.Letter.Changes[0].What != "moved from payment" {
		t.Errorf("changes %+v", c.Letter.Changes)
	}
	m, known, err := f.ledger.Mark(t.Context(), "payment", key(0))
	if f.check(err); !known || m.State != dlq.StateDiscarded {
		t.Errorf("the old consumer's mark: %+v", m)
	}
}

func TestExported_letters_can_be_imported(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 4 {
		f.park("payment", n)
	}
	f.replay(dlq.Selection{IDs: []string{id(0)}}, dlq.ReplayOptions{})
	before := f.get(1)
	var file bytes.Buffer
	_, err := f.queue.Export(t.Context(), &file, dlq.Filter{})
	f.check(err)
	_, err = f.queue.Discard(t.Context(), dlq.Selection{IDs: []string{id(1), id(2)}}, dlq.DiscardOptions{}, nil)
	f.check(err)
	f.handle("payment", 1, 0)
	f.ledger.forget("payment", key(2))
	export := file.String()
	sum, err := f.queue.Import(t.Context(), strings.NewReader(export), "ada@host", nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.AlreadyHandled: 1, dlq.Imported: 2, dlq.Exists: 1})
	sum, err = f.queue.Import(t.Context(), strings.NewReader(export), "ada@host", nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.AlreadyHandled: 1, dlq.Exists: 3})
	after := f.get(1)
	if len(after.Letter.Changes) != 1 || after.Letter.Changes[0].What != "imported" {
		t.Errorf("changes %+v", after.Letter.Changes)
	}
	after.Letter.Changes, after.Letter.Sequence = nil, before.Letter.Sequence
	if got, want := fmt.Sprintf("%+v", *after.Letter), fmt.Sprintf("%+v", *before.Letter); got != want {
		t.Errorf("letter\n%s, want\n%s", got, want)
	}
	sum, _ = f.replay(dlq.Selection{IDs: []string{id(1), id(2)}}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1, dlq.Refused: 1})

	for _, bad := range []string{`{"id":"payment.x"}` + "\n", `{"id":"outbox.1","consumer":"outbox"}`, `{"id":"a.b","consumer":"a","reason":"*","event_key":"b"}`} {
		sum, err := f.queue.Import(t.Context(), strings.NewReader(bad), "", nil)
		f.check(err)
		f.expect(sum, map[dlq.Status]int{dlq.Refused: 1})
	}
	if _, err := f.queue.Import(t.Context(), strings.NewReader(export+"{"), "", nil); err == nil || !strings.Contains(err.Error(), "letter 5") {
		t.Errorf("half a file: %v", err)
	}
}

func TestEdit_does_not_touch_a_letter_that_came_meanwhile(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	s := dlq.NewStream(f.bus, f.ledger)
	f.check(s.EditAfter(t.Context(), id(1), dlq.Edit{Data: []byte("{}")}, nil))
	err := s.EditAfter(t.Context(), id(1), dlq.Edit{Data: []byte("[]")}, func() { f.park("payment", 1) })
	if !errors.Is(err, bus.ErrConflict) || string(f.get(1).Letter.Data) == "[]" {
		t.Errorf("%v: %s", err, f.get(1).Letter.Data)
	}
}
