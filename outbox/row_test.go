package outbox

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestRowIsTheMessage(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]*nats.Msg{
		"plain":    {Subject: "events.order.placed.v1.ord-1", Header: nats.Header{nats.MsgIdHdr: {"id"}, "ce-id": {"1"}, "ce-type": {"order.placed.v1"}}, Data: []byte("{}")},
		"several":  {Subject: "a.b", Header: nats.Header{nats.MsgIdHdr: {"id"}, "many": {"1", "2"}, "one": {"3"}, "none": {""}}, Data: []byte{0, 0xff}},
		"no data":  {Subject: "a", Header: nats.Header{nats.MsgIdHdr: {"id"}}, Data: []byte{}},
		"any text": {Subject: "a.=C3=A9", Header: nats.Header{nats.MsgIdHdr: {"é"}, "x": {"\u0000 \"é\\"}}, Data: []byte{}},
	} {
		r, err := newRow(want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := r.message()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func TestRowsThatCannotBeMessages(t *testing.T) {
	t.Parallel()
	good := row{messageID: "id", subject: "a.b", headers: `{"a":"b"}`}
	if _, err := good.message(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*row){
		"not JSON":              func(r *row) { r.headers = "{" },
		"not an object":         func(r *row) { r.headers = "[]" },
		"a number":              func(r *row) { r.headers = `{"a":1}` },
		"a list of numbers":     func(r *row) { r.headers = `{"a":[1]}` },
		"a header without name": func(r *row) { r.headers = `{"":"b"}` },
		"a colon":               func(r *row) { r.headers = `{"a:b":"c"}` },
		"a header's line end":   func(r *row) { r.headers = `{"a":"b\r\nc: d"}` },
		"a line end in the id":  func(r *row) { r.messageID = "a\r\nb" },
		"null":                  func(r *row) { r.headers = `{"a":null}` },
		"null in a list":        func(r *row) { r.headers = `{"a":["b",null]}` },
		"an empty list":         func(r *row) { r.headers = `{"a":[]}` },
		"an object":             func(r *row) { r.headers = `{"a":{}}` },
		"in a list":             func(r *row) { r.headers = `{"a":["b","c\nd"]}` },
	} {
		r := good
		spoil(&r)
		if m, err := r.message(); !errors.Is(err, errUnreadable) {
			t.Errorf("%s: %+v, %v; want errUnreadable", name, m, err)
		}
	}
}

// What is read by hand is what encoding/json reads.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":"b"}`, `{"a":"b","c":"d"}`, `{"a":"b","a":"c"}`, `{"a":"}"}`, `{"a":":"}`, `{"a":"b"},`, `{"a":"b",}`, `{"a":"b"}}`,
		`{"a": "b"}`, `{"a":"\u0000"}`, `{"a":["b"]}`, `{"a","b":"c"}`, `{"":""}`, `{"a":"b""c":"d"}`, `["a":"b"}`, "{\"a\":\"\n\"}", "{\"a\":\"\xff\"}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, object string) {
		got, ok := parseFlat(object)
		if !ok {
			return
		}
		var want map[string]values
		if err := json.Unmarshal([]byte(object), &want); err != nil {
			t.Fatalf("%q: read as %v, encoding/json says %v", object, got, err)
		}
		for name, v := range want {
			if !slices.Equal(got[name], v) {
				t.Errorf("%q: %q is %q, want %q", object, name, got[name], v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%q: %d headers, want %d", object, len(got), len(want))
		}
	})
}
