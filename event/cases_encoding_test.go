package event_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// Cases that went wrong in other systems, as far as the binding decides them.

func TestSubject_is_percent_encoded_and_foreign_forms_are_read(t *testing.T) {
	t.Parallel()
	const subject = `café №7 "x" 100%`
	e := sample(t)
	e.SetSubject(subject)
	m, err := event.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Header["ce-subject"][0], "caf%C3%A9%20%E2%84%967%20%22x%22%20100%25"; got != want {
		t.Errorf("on the wire %q, want %q", got, want)
	}
	if got := mustDecode(t, overTheWire(t, m.Header), m.Data).Subject(); got != subject {
		t.Errorf("decoded %q, want %q", got, subject)
	}
	for wire, want := range map[string]string{
		"caf%c3%a9":       "café",
		"%41BC":           "ABC",
		"café":            "café",
		`"quoted%20text"`: "quoted text",
		`"a \"b\" \\c"`:   `a "b" \c`,
		`"open`:           `"open`,
		`"`:               `"`,
		`"a"b"`:           `"a"b"`,
		`"a\"`:            `"a\"`,
		"a+b":             "a+b",
	} {
		if got := mustDecode(t, binary("ce-subject", wire), nil).Subject(); got != want {
			t.Errorf("%s decoded %q, want %q", wire, got, want)
		}
	}
}

func TestEscapes_are_decoded_once_and_never_smuggle(t *testing.T) {
	t.Parallel()
	for wire, want := range map[string]string{
		"100%2525": "100%25",
		"%4":       "%4",
		"%":        "%",
		"%zz":      "%zz",
		"%%41":     "%A",
		"%4%41":    "%4A",
	} {
		if got := mustDecode(t, binary("ce-subject", wire), nil).Subject(); got != want {
			t.Errorf("%s decoded %q, want %q", wire, got, want)
		}
	}
	for _, attribute := range []string{"subject", "id", "source", "time", "datacontenttype", "someextension"} {
		for _, wire := range []string{"%FF", "%C0%AF", "%ED%A0%80", "%F4%90%80%80", "a%C3", "\xff"} {
			h := binary()
			h["ce-"+attribute] = []string{wire}
			wantRefused(t, h, nil, attribute+": not valid UTF-8")
		}
		h := binary()
		h["ce-"+attribute] = []string{"%0D%0ANats-Msg-Id:%20x"}
		wantRefused(t, h, nil, attribute+": character U+000D is not allowed")
	}

	// The codec itself passes control characters on, and still none gets out of its line.
	text, err := event.DecodeAttribute("%0D%0ANats-Msg-Id:%20x")
	if err != nil {
		t.Fatal(err)
	}
	h := overTheWire(t, nats.Header{"ce-subject": {event.EncodeAttribute(text)}})
	if len(h) != 1 || h.Get("ce-subject") != "%0D%0ANats-Msg-Id:%20x" {
		t.Errorf("re-encoded header is %v", h)
	}
}

func TestContent_type_selects_the_mode_in_every_spelling(t *testing.T) {
	t.Parallel()
	const data = `{"amount":1}`
	body := envelope(`,"datacontenttype":"application/json","data":` + data)
	want := describe(mustDecode(t, binary("ce-datacontenttype", "application/json"), []byte(data)))
	for name, m := range map[string]nats.Msg{
		"1 parameters":           {Header: nats.Header{"Content-Type": {"application/cloudevents+json; charset=UTF-8"}}, Data: body},
		"2 other case":           {Header: nats.Header{"content-type": {"APPLICATION/CloudEvents+JSON"}}, Data: body},
		"2 without format":       {Header: nats.Header{"CONTENT-TYPE": {" application/cloudevents "}}, Data: body},
		"3 no Content-Type":      {Header: binary("ce-datacontenttype", "application/json"), Data: []byte(data)},
		"4 content-type only":    {Header: binary("content-type", "application/json"), Data: []byte(data)},
		"4 attribute wins":       {Header: binary("content-type", "text/plain", "ce-datacontenttype", "application/json"), Data: []byte(data)},
		"5 stray ce-id":          {Header: nats.Header{"Content-Type": {"application/cloudevents+json"}, "ce-id": {"WRONG"}}, Data: body},
		"5 stray, ambiguous too": {Header: nats.Header{"Content-Type": {"application/cloudevents+json"}, "ce-id": {"%FF", "WRONG"}}, Data: body},
		"4 and empty ones":       {Header: binary("content-type", "application/json", "content-type", "", "Content-Type", ""), Data: []byte(data)},
		"6 legacy, no header":    {Data: append([]byte(" \r\n\t"), body...)},
		"6 legacy, other header": {Header: nats.Header{"Nats-Msg-Id": {"x"}}, Data: body},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := describe(mustDecode(t, m.Header, m.Data)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestBatches_are_refused_whole(t *testing.T) {
	t.Parallel()
	both := "[" + string(envelope("")) + "," + string(envelope("")) + "]"
	for _, body := range []string{both, "[]", " [] ", "[" + string(envelope("")) + "]"} {
		wantRefused(t, nats.Header{"Content-Type": {"application/cloudevents-batch+json"}}, []byte(body), "batch is not supported")
		wantRefused(t, nats.Header{"content-type": {"Application/CloudEvents-Batch; charset=utf-8"}}, []byte(body), "batch is not supported")
		wantRefused(t, structured, []byte(body), "batch is not supported")
		wantRefused(t, nil, []byte(body), "not a CloudEvent")
	}
}

func TestIllegal_extension_names_are_refused_out_and_ignored_in(t *testing.T) {
	t.Parallel()
	illegal := []string{"trace-id", "Trace_ID", "UPPER", "data", "", "data_base64", "id", "specversion", "été", "a b", "a\r\nb"}
	draft := event.Draft{Type: "order.placed.v1", Key: "k", Extensions: map[string]string{}}
	for _, name := range illegal {
		draft.Extensions[name] = "x"
	}
	_, err := draft.Seal(event.Identity{ID: "1", Source: "/s"})
	if !errors.Is(err, event.ErrInvalidEvent) {
		t.Fatalf("Seal = %v", err)
	}
	for _, name := range illegal {
		e := sample(t)
		e.Context.(*cloudevents.EventContextV1).Extensions[name] = "x"
		_, encodeErr := event.Encode(e)
		if !errors.Is(encodeErr, event.ErrInvalidEvent) {
			t.Errorf("Encode with extension %q = %v", name, encodeErr)
		}
		for _, e := range []error{err, encodeErr} {
			if !strings.Contains(e.Error(), quoted(name)) {
				t.Errorf("error does not name %q: %v", name, e)
			}
		}
	}

	draft.Extensions = map[string]string{"abcdefghijklmnopqrstuvwxy": "long", "0": "digit"}
	e, err := draft.Seal(event.Identity{ID: "1", Source: "/s"})
	if err != nil {
		t.Fatalf("legal names: %v", err)
	}
	if got := event.Extension(e, "abcdefghijklmnopqrstuvwxy"); got != "long" {
		t.Errorf("extension = %q", got)
	}

	// Received: ignored, whatever the value, in both modes alike.
	want := describe(mustDecode(t, binary("ce-ok", "1"), []byte("1")))
	for name, m := range map[string]nats.Msg{
		"binary": {Header: binary("ce-ok", "1", "ce-fc-code-checksum", "x", "ce-", "x", "ce-data", "x", "CE-data_base64", "%FF",
			"ce-\u212a", "x", "ce-a\x10", "x", "ce-fc-code-checksum", "y"), Data: []byte("1")},
		"structured": {Header: structured, Data: envelope(`,"ok":"1","fc-code-checksum":"x","":{},"UPPER":1.5,"\u212a":"\ud800","data":1`)},
	} {
		if got := describe(mustDecode(t, m.Header, m.Data)); got != want {
			t.Errorf("%s: got %s\nwant %s", name, got, want)
		}
	}
}

func quoted(s string) string {
	return `"` + strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(s) + `"`
}

func TestHeader_names_fold_and_conflicts_are_refused_every_time(t *testing.T) {
	t.Parallel()
	with := func(pairs ...string) nats.Header {
		h := binary(pairs...)
		delete(h, "ce-id")
		for i := 0; i < len(pairs); i += 2 {
			h[pairs[i]] = append(h[pairs[i]][:0:0], pairs[i+1])
		}
		return h
	}
	if got := mustDecode(t, with("CE-ID", "A"), nil).ID(); got != "A" {
		t.Errorf("CE-ID: id = %q", got)
	}
	if got := mustDecode(t, with("cE-MyExt", "v", "Ce-Id", "A"), nil); event.Extension(got, "myext") != "v" {
		t.Errorf("extensions = %v", got.Extensions())
	}
	wantRefused(t, with("ce-id", "A", "Ce-Id", "B"), nil, "id: repeated with different values")
	wantRefused(t, binary("ce-id", "B"), nil, "id: repeated with different values")
	wantRefused(t, with("ce-id", "A", "ce-x", "1", "CE-X", "2", "ce-time", "bad", "CE-TIME", "worse"), nil,
		"time: not an RFC 3339 time: \"bad\"; time: repeated with different values; x: repeated with different values")
	for _, h := range []nats.Header{
		binary("ce-id", "A"),
		binary("Ce-Id", "A", "CE-ID", "%41"),
		binary("ce-x", "1", "ce-x", "1", "ce-X", "1"),
	} {
		if got := mustDecode(t, h, nil).ID(); got != "A" {
			t.Errorf("%v: id = %q", h, got)
		}
	}
}

func TestTime_keeps_instant_offset_and_nanoseconds_or_is_refused(t *testing.T) {
	t.Parallel()
	for wire, want := range map[string]string{
		"2026-03-01T10:00:00.123456789+05:30": "2026-03-01T10:00:00.123456789+05:30",
		"2026-03-01t10:00:00z":                "2026-03-01T10:00:00Z",
		"2026-03-01t10:00:00.5-09:30":         "2026-03-01T10:00:00.5-09:30",
		"2026-03-01T10:00:00.1234567891Z":     "2026-03-01T10:00:00.123456789Z",
		"0001-01-01T00:00:00Z":                "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59.999999999+23:59": "9999-12-31T23:59:59.999999999+23:59",
		"2024-02-29T00:00:00-00:00":           "2024-02-29T00:00:00Z",
	} {
		e := mustDecode(t, binary("ce-time", event.EncodeAttribute(wire)), nil)
		if got := e.Time().Format(time.RFC3339Nano); got != want {
			t.Errorf("%s decoded %s, want %s", wire, got, want)
		}
		// Hop after hop, in both modes: the SDK alone would turn it to UTC.
		for range 2 {
			b, err := event.Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			s, err := event.EncodeStructured(mustDecode(t, b.Header, b.Data))
			if err != nil {
				t.Fatal(err)
			}
			e = mustDecode(t, s.Header, s.Data)
		}
		if got := e.Time().Format(time.RFC3339Nano); got != want {
			t.Errorf("%s is %s after hops, want %s", wire, got, want)
		}
	}
	for _, wire := range []string{
		"2026-03-01 10:00:00Z", "2026-03-01T10:00:00", "2026-03-01T10:00:00GMT", "2026-02-30T00:00:00Z", "1719999999", "",
		"2025-02-29T00:00:00Z", "2026-03-01T24:00:00Z", "2026-03-01T1:00:00Z", "2026-03-01T10:00:00,5Z", "2026-03-01T10:00:00.Z",
		"2026-03-01T10:00:00+24:00", "2026-03-01T10:00:00+05:60", "2026-03-01T10:00:00+0530", "2026-03-01T10:00Z", "2026-03-01",
		"2026-03-01T10:00:60Z", "+2026-03-01T10:00:00Z", "2026-03-01T10:00:00Zz", "t", "z", "now",
	} {
		wantRefused(t, binary("ce-time", event.EncodeAttribute(wire)), nil, "time: ")
		wantRefused(t, structured, envelope(`,"time":"`+wire+`"`), "time: ")
	}
}

func TestTime_with_seconds_in_its_offset_keeps_the_instant(t *testing.T) {
	t.Parallel()
	e := sample(t)
	at := time.Date(1890, 1, 1, 0, 0, 0, 7, time.FixedZone("LMT", 53*60+28))
	e.SetTime(at)
	m, err := event.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustDecode(t, m.Header, nil).Time(); !got.Equal(at) {
		t.Errorf("decoded %v, want %v", got, at)
	}
}

func TestBase64_is_taken_from_the_unescaped_string(t *testing.T) {
	t.Parallel()
	e := mustDecode(t, structured, envelope(`,"data_base64":"\u002B\u002B\u002B\u002B"`))
	if want := []byte{0xFB, 0xEF, 0xBE}; !bytes.Equal(e.Data(), want) {
		t.Errorf("data = %x, want %x", e.Data(), want)
	}
	wantRefused(t, structured, envelope(`,"data_base64":"@@"`), "data: data_base64 is not base64")
	wantRefused(t, structured, envelope(`,"data_base64":"++++","data":1`), "data: both data and data_base64")
}

func TestData_is_the_same_bytes_after_every_hop(t *testing.T) {
	t.Parallel()
	data := []byte(`{"amount":9007199254740993,"z":1.0,"a":1}`)
	e := sample(t)
	e.DataEncoded = data
	for hop := range 4 {
		encode := event.Encode
		if hop%2 == 1 {
			encode = event.EncodeStructured
		}
		m, err := encode(e)
		if err != nil {
			t.Fatal(err)
		}
		e = mustDecode(t, overTheWire(t, m.Header), m.Data)
		if sha256.Sum256(e.Data()) != sha256.Sum256(data) {
			t.Fatalf("hop %d: data = %s", hop, e.Data())
		}
	}
}

func TestMalformed_bodies_are_refused_with_a_reason(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat("[", 10_000)
	for _, header := range []nats.Header{structured, nil} {
		wantRefused(t, header, envelope(",\"subject\":\"a\xffb\""), "body: not valid UTF-8")
		wantRefused(t, header, envelope(`,"subject":"a\u0000b"`), `subject: character U+0000 is not allowed: "a\x00b"`)
		wantRefused(t, header, envelope(`,"id":"b"`), `"id": repeated`)
		wantRefused(t, header, envelope(`,"data":`+nested), "body: nested deeper than 1000")
		wantRefused(t, header, envelope(`,"data":`+nested+strings.Repeat("]", 10_000)), "body: nested deeper than 1000")
		wantRefused(t, header, envelope(",\"subject\":\"a\x00b\""), "body: invalid character")
	}
	wantRefused(t, structured, append([]byte("\xEF\xBB\xBF"), envelope("")...), "body: begins with a byte order mark")
	wantRefused(t, nil, append([]byte("\xEF\xBB\xBF"), envelope("")...), "not a CloudEvent")
	wantRefused(t, binary("ce-subject", "a%00b"), nil, "subject: character U+0000 is not allowed")
}

func TestTypes_that_would_break_a_subject_are_refused(t *testing.T) {
	t.Parallel()
	for _, illegal := range []string{
		"order created", "a.*", "a.>", "a..b", ".a", "a\nb", "$JS.API.STREAM.DELETE.X", "$KV.b.k", "_INBOX.x.v1", "ünï", "",
		"order.placed", "order.placed.v0", "order.placed.v1\n", "order.placed.v1.x", "Order.placed.v1", "order.*.v1", "order.pla ced.v1",
		"order.placed.v1\r\nPUB x 1", "com.acme.order.placed.v1",
		strings.Repeat("a", 2000), strings.Repeat("a", 2000) + ".placed.v1",
	} {
		definition := event.Define[int](event.Type(illegal))
		_, err := definition.New("k", 1).Seal(event.Identity{ID: "1", Source: "/s"})
		if !errors.Is(err, event.ErrInvalidType) {
			t.Errorf("Seal of type %.40q = %v, want ErrInvalidType", illegal, err)
		} else if len(err.Error()) > 250 || strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("error is long or of many lines: %q", err)
		}
		if _, err := (event.Names{}).TypeOf(illegal); !errors.Is(err, event.ErrInvalidType) {
			t.Errorf("TypeOf(%.40q) = %v, want ErrInvalidType", illegal, err)
		}
	}
}

func TestAn_undecodable_message_has_one_key_for_every_delivery(t *testing.T) {
	t.Parallel()
	h := binary()
	delete(h, "ce-id")
	wantRefused(t, h, nil, "id: missing")
	wantRefused(t, structured, []byte(`{"specversion":"1.0","source":"/s","type":"t"}`), "id: missing")

	stored := time.Date(2026, time.January, 2, 15, 4, 5, 6, time.FixedZone("CET", 3600))
	first := event.EventKeyAt("EVENTS", 7, stored)
	if again := event.EventKeyAt("EVENTS", 7, stored.UTC()); again != first {
		t.Errorf("keys %s and %s for one message", first, again)
	}
	for _, other := range []event.EventKey{
		event.EventKeyAt("EVENTS", 8, stored), event.EventKeyAt("OTHER", 7, stored),
		event.EventKeyAt("EVENTS", 7, stored.Add(1)), event.NewEventKey("EVENTS", "7"),
	} {
		if other == first {
			t.Errorf("another message has the same key %s", first)
		}
	}
}

func TestEvent_keys_take_source_and_id_apart(t *testing.T) {
	t.Parallel()
	keys := map[event.EventKey][2]string{}
	for _, identity := range [][2]string{
		{"/shop-a", "1"}, {"/shop-b", "1"}, {"/a", "b/c"}, {"/a/b", "c"}, {"/a/", "b/c"}, {"/a", "/b/c"}, {"/ab", "c"}, {"/a", "bc"},
	} {
		key := event.NewEventKey(identity[0], identity[1])
		if other, ok := keys[key]; ok {
			t.Errorf("%q and %q have one key", identity, other)
		}
		keys[key] = identity
	}
}
