package event_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/farandole/farandole/event"
)

// sample returns an event as services publish it.
func sample(t testing.TB) event.Event {
	t.Helper()
	e, err := event.Draft{
		Type:        "order.placed.v1",
		Key:         "ord-7f3a",
		Subject:     "orders/7f3a",
		ContentType: event.ContentTypeJSON,
		Data:        []byte(`{"amount":2500}`),
	}.Seal(event.Identity{
		ID:          "0197f3a2-0000-7000-8000-000000000001",
		Source:      "order-service",
		Time:        time.Date(2026, 3, 1, 10, 0, 0, 123456789, time.UTC),
		Causation:   "0197f3a2-0000-7000-8000-000000000000",
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	if err != nil {
		t.Fatalf("seal: %v", err)
	}
	return e
}

// binary returns the headers of a minimal binary-mode message, changed by pairs
// of name and value.
func binary(pairs ...string) nats.Header {
	h := nats.Header{
		"ce-specversion": {"1.0"},
		"ce-id":          {"A"},
		"ce-source":      {"/shop"},
		"ce-type":        {"order.placed.v1"},
	}
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = append(h[pairs[i]], pairs[i+1])
	}
	return h
}

// envelope returns a structured body: a minimal one with members added.
func envelope(members string) []byte {
	return []byte(`{"specversion":"1.0","id":"A","source":"/shop","type":"order.placed.v1"` + members + `}`)
}

var structured = nats.Header{"Content-Type": {"application/cloudevents+json"}}

// overTheWire returns the message's header as a receiver reads it: a value that
// broke out of its line would show as another header.
func overTheWire(t interface{ Fatalf(string, ...any) }, h nats.Header) nats.Header {
	var b strings.Builder
	b.WriteString("NATS/1.0\r\n")
	for name, values := range h {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	b.WriteString("\r\n")
	got, err := nats.DecodeHeadersMsg([]byte(b.String()))
	if err != nil {
		t.Fatalf("header block %q: %v", b.String(), err)
	}
	return got
}

// describe writes everything that an event says, values in canonical string form.
func describe(e event.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "id=%q source=%q type=%q subject=%q contenttype=%q schema=%q",
		e.ID(), e.Source(), e.Type(), e.Subject(), e.DataContentType(), e.DataSchema())
	if ctx := e.Context.(*cloudevents.EventContextV1); ctx.Time != nil {
		fmt.Fprintf(&b, " time=%q", ctx.Time.Format(time.RFC3339Nano))
	}
	for _, name := range slices.Sorted(maps.Keys(e.Extensions())) {
		fmt.Fprintf(&b, " %s=%q", name, event.Extension(e, name))
	}
	fmt.Fprintf(&b, " data=%x", e.Data())
	return b.String()
}

func mustDecode(t testing.TB, h nats.Header, body []byte) event.Event {
	t.Helper()
	e, err := event.Decode(h, body)
	if err != nil {
		t.Fatalf("Decode(%v, %q): %v", h, body, err)
	}
	return e
}

// wantRefused checks that a message is refused, the same way each time, for a
// reason that contains every one of parts.
func wantRefused(t testing.TB, h nats.Header, body []byte, parts ...string) {
	t.Helper()
	var first string
	for range 20 { // maps are read in another order each time
		_, err := event.Decode(h, body)
		if !errors.Is(err, event.ErrDecode) {
			t.Fatalf("Decode(%v, %.80q) = %v, want ErrDecode", h, body, err)
		}
		if first == "" {
			first = err.Error()
		}
		if err.Error() != first {
			t.Fatalf("two reasons for one message:\n%s\n%s", first, err)
		}
	}
	for _, part := range parts {
		if !strings.Contains(first, part) {
			t.Errorf("Decode(%v, %.80q) = %q, want %q in it", h, body, first, part)
		}
	}
	if len(first) > 600 || strings.ContainsFunc(first, func(r rune) bool { return r < ' ' || r == 0x7F }) {
		t.Errorf("reason is long or has control characters: %q", first)
	}
}

func TestEncodeWritesEveryAttributeAsALowerCaseHeader(t *testing.T) {
	t.Parallel()
	m, err := event.Encode(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	want := nats.Header{
		"ce-specversion":     {"1.0"},
		"ce-id":              {"0197f3a2-0000-7000-8000-000000000001"},
		"ce-source":          {"order-service"},
		"ce-type":            {"order.placed.v1"},
		"ce-subject":         {"orders/7f3a"},
		"ce-time":            {"2026-03-01T10:00:00.123456789Z"},
		"ce-datacontenttype": {"application/json"},
		"ce-partitionkey":    {"ord-7f3a"},
		"ce-correlationid":   {"ord-7f3a"},
		"ce-causationid":     {"0197f3a2-0000-7000-8000-000000000000"},
		"ce-traceparent":     {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
	if !maps.EqualFunc(m.Header, want, slices.Equal) {
		t.Errorf("header = %v\nwant %v", m.Header, want)
	}
	if m.Subject != "" || string(m.Data) != `{"amount":2500}` {
		t.Errorf("subject %q, data %q", m.Subject, m.Data)
	}
}

func TestEncodeStructuredWritesOneObjectInFixedOrder(t *testing.T) {
	t.Parallel()
	e := sample(t)
	e.SetExtension("attempts", 3)
	e.SetExtension("urgent", true)
	e.SetExtension("digest", []byte{0xFB, 0xEF})
	e.SetSubject(`a "b" \c <é>`)
	m, err := event.EncodeStructured(e)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"specversion":"1.0","id":"0197f3a2-0000-7000-8000-000000000001","source":"order-service",` +
		`"type":"order.placed.v1","subject":"a \"b\" \\c <é>","time":"2026-03-01T10:00:00.123456789Z",` +
		`"datacontenttype":"application/json","attempts":3,"causationid":"0197f3a2-0000-7000-8000-000000000000",` +
		`"correlationid":"ord-7f3a","digest":"++8=","partitionkey":"ord-7f3a",` +
		`"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","urgent":true,"data":{"amount":2500}}`
	if string(m.Data) != want {
		t.Errorf("body = %s\nwant  %s", m.Data, want)
	}
	if got := m.Header.Get("Content-Type"); got != "application/cloudevents+json" || len(m.Header) != 1 {
		t.Errorf("header = %v", m.Header)
	}
	if got := describe(mustDecode(t, m.Header, m.Data)); got != describe(e) {
		t.Errorf("decoded %s\nwant    %s", got, describe(e))
	}
}

func TestDecodeReadsTypedExtensionsInStructuredMode(t *testing.T) {
	t.Parallel()
	e := mustDecode(t, structured, envelope(`,"n":-2147483648,"zero":-0,"yes":true,"no":false,"s":"x","gone":null,"empty":""`))
	want := map[string]any{"n": int32(-2147483648), "zero": int32(0), "yes": true, "no": false, "s": "x", "empty": ""}
	if !maps.Equal(e.Extensions(), want) {
		t.Errorf("extensions = %#v, want %#v", e.Extensions(), want)
	}
}

func TestDecodeStructuredRefuses(t *testing.T) {
	t.Parallel()
	for members, reason := range map[string]string{
		`,"n":2147483648`:           "n: want an integer of 32 bits, have \"2147483648\"",
		`,"n":1.5`:                  "n: want an integer of 32 bits",
		`,"n":1.0`:                  "n: want an integer of 32 bits",
		`,"n":1e2`:                  "n: want an integer of 32 bits",
		`,"x":{}`:                   "x: want a string, a boolean or an integer",
		`,"x":[1]`:                  "x: want a string, a boolean or an integer",
		`,"subject":1`:              "subject: want a string, have \"1\"",
		`,"subject":""`:             "subject: empty",
		`,"time":true`:              "time: want a string",
		`,"time":""`:                "time: empty",
		`,"subject":"\ud800"`:       "subject: half of a surrogate pair",
		`,"subject":"\udc00\ud800"`: "subject: half of a surrogate pair",
		`,"subject":"\ud83d x"`:     "subject: half of a surrogate pair",
		`,"\ud800":1`:               "half of a surrogate pair",
		`,"subject":"a\u0085b"`:     "subject: character U+0085 is not allowed",
		`,"subject":"a\uffffb"`:     "subject: character U+FFFF is not allowed",
		`,"dataschema":"relative"`:  "dataschema: not an absolute URI",
		`,"datacontenttype":"nope"`: "datacontenttype: not a media type",
		`,"id":"A"`:                 "\"id\": repeated",
		`,"\u0069d":"A"`:            "\"id\": repeated",
		`,"x-y":1,"x-y":1`:          "\"x-y\": repeated",
		`,"data":1,"data":1`:        "\"data\": repeated",
		`,"data_base64":1`:          "data: data_base64 is not a string",
		`,"data_base64":"AA"`:       "data: data_base64 is not base64",
		`,"data_base64":"AA=\n="`:   "data: data_base64 is not base64",
		`,"datacontenttype":"text/plain","data":"\ud800"`: "data: half of a surrogate pair",
		`,`:        "body: invalid character",
		`} {"a":1`: "body: invalid character",
	} {
		t.Run(members, func(t *testing.T) {
			t.Parallel()
			wantRefused(t, structured, envelope(members), reason)
		})
	}
	for body, reason := range map[string]string{
		``:      "body: unexpected end",
		` `:     "body: unexpected end",
		`"x"`:   "body: not a JSON object",
		`null`:  "body: not a JSON object",
		`{}`:    "id: missing; source: missing; specversion: missing; type: missing",
		`{"id"`: "body: unexpected end",
		`{"specversion":"0.3","id":"1","source":"/s","type":"t"}`:  "specversion: unsupported version: \"0.3\"",
		`{"specversion":"1.0","id":"","source":"","type":null}`:    "id: empty: \"\"; source: empty: \"\"; type: missing",
		`{"specversion":"1.0","id":"1","source":"%zz","type":"t"}`: "source: not a URI-reference",
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			wantRefused(t, structured, []byte(body), reason)
		})
	}
}

func TestDecodeKeepsStructuredDataAsWritten(t *testing.T) {
	t.Parallel()
	tests := []struct{ members, want string }{
		{`,"data" : {"b": 1.0, "a":9007199254740993,"a":1 } `, `{"b": 1.0, "a":9007199254740993,"a":1 }`},
		{`,"data":"text"`, `"text"`},
		{`,"data":"text","datacontenttype":"application/vnd.x+json; charset=utf-8"`, `"text"`},
		{`,"data":"te\u0078t\n\ud83d\ude00","datacontenttype":"text/plain"`, "text\n😀"},
		{`,"datacontenttype":"text/plain","data":[1, 2]`, `[1, 2]`},
		{`,"data":[]`, `[]`},
		{`,"data":0`, `0`},
		{`,"data":false`, `false`},
		{`,"data":null`, ``},
		{`,"data":null,"data_base64":"AAE="`, "\x00\x01"},
		{`,"data_base64":""`, ``},
		{``, ``},
	}
	for _, tt := range tests {
		t.Run(tt.members, func(t *testing.T) {
			t.Parallel()
			e := mustDecode(t, structured, envelope(tt.members))
			if string(e.Data()) != tt.want {
				t.Errorf("data = %q, want %q", e.Data(), tt.want)
			}
			if (e.Data() == nil) != (tt.want == "") {
				t.Errorf("data = %#v: no data is nil", e.Data())
			}
		})
	}
}

func TestEncodeStructuredKeepsDataToTheLastBit(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	for _, data := range []string{
		"", "null", " null", "{}", " {}", "{}\n", `"\ud800"`, "\"\xff\"", "\xEF\xBB\xBF{}", "{", "1.0", "[1,]", "\x00", deep,
	} {
		for _, contentType := range []string{"", "application/json", "text/plain", "application/octet-stream"} {
			e := sample(t)
			e.DataEncoded = []byte(data)
			if e.Context.(*cloudevents.EventContextV1).DataContentType = &contentType; contentType == "" {
				e.Context.(*cloudevents.EventContextV1).DataContentType = nil
			}
			m, err := event.EncodeStructured(e)
			if err != nil {
				t.Fatalf("%q: %v", data, err)
			}
			if got := mustDecode(t, m.Header, m.Data); describe(got) != describe(e) {
				t.Errorf("%.40q as %q: decoded %.300s\nwant %.300s", data, contentType, describe(got), describe(e))
			}
		}
	}
}

func TestDecodeNeverTakesServerHeadersIntoTheEvent(t *testing.T) {
	t.Parallel()
	h := binary("Nats-Msg-Id", "x", "Nats-Expected-Stream", "EVENTS", "Nats-TTL", "1s", "X-Other", "y")
	e := mustDecode(t, h, nil)
	m, err := event.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Extensions()) != 0 || len(m.Header) != 4 {
		t.Errorf("extensions %v, re-encoded header %v", e.Extensions(), m.Header)
	}
}

func TestDecodeRefusesWhatIsNoCloudEvent(t *testing.T) {
	t.Parallel()
	wantRefused(t, nil, nil, "not a CloudEvent")
	wantRefused(t, nats.Header{}, []byte("hello"), "not a CloudEvent")
	wantRefused(t, nats.Header{}, []byte(`{"id":"1"}`), "specversion: missing")
	wantRefused(t, nats.Header{"Content-Type": {"application/json"}}, envelope(""), "not a CloudEvent")
	wantRefused(t, nats.Header{"ce-x-y": {"1"}}, envelope(""), "specversion: missing")
	wantRefused(t, nats.Header{"Content-Type": {"application/cloudevents+avro"}}, nil, "event format is not supported")
	wantRefused(t, binary("Content-Type", " Application/CloudEvents-v2 ; x=1"), nil, "event format is not supported")
	wantRefused(t, binary("Content-Type", "text/plain", "content-type", "text/html"), nil, "content-type: repeated")
	wantRefused(t, binary("ce-specversion", "0.3"), nil, "specversion: repeated with different values")
}

func TestIdentityKeepsTheSourceToTheLetter(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		"/shop", "shop", "a/b.c", "//host/x", "HTTP://Example.COM/a", "urn:X:y", "a#", "#", "?", "/a b", "/caf%C3%A9", "/café", "A:", "mailto:a@b",
	} {
		h := binary()
		h["ce-source"] = []string{event.EncodeAttribute(source)}
		if e := mustDecode(t, h, nil); e.Source() != source {
			t.Errorf("source %q decoded as %q", source, e.Source())
		}
	}
}

func TestValidateEventNamesEveryFault(t *testing.T) {
	t.Parallel()
	subject, contentType := "", "nonsense"
	e := event.Event{Context: &cloudevents.EventContextV1{
		ID:              "a\nb",
		Type:            "",
		Subject:         &subject,
		Time:            &types.Timestamp{Time: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		DataContentType: &contentType,
		DataSchema:      types.ParseURI("relative"),
		Extensions:      map[string]any{"data": "x", "trace-id": "x", "n": 1, "bad": "\xff", "": "x"},
	}}
	err := event.Validate(e)
	if !errors.Is(err, event.ErrInvalidEvent) {
		t.Fatalf("ValidateEvent = %v", err)
	}
	for _, part := range []string{
		`id: character U+000A is not allowed: "a\nb"`, `source: empty`, `type: empty`, `subject: empty`,
		`time: not an RFC 3339 time: "10000-`, `datacontenttype: not a media type`, `dataschema: not an absolute URI`,
		`extension "data"`, `extension "trace-id"`, `extension ""`, `n: int is not a CloudEvents type`, `bad: not valid UTF-8`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q:\n%s", part, err)
		}
	}
	for name, bad := range map[string]event.Event{
		"no context":  {},
		"nil context": {Context: (*cloudevents.EventContextV1)(nil)},
		"version 0.3": cloudevents.New("0.3"),
	} {
		if err := event.Validate(bad); !errors.Is(err, event.ErrInvalidEvent) || !strings.Contains(err.Error(), "specversion") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := event.Encode(bad); !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("Encode %s: %v", name, err)
		}
		if _, err := event.EncodeStructured(bad); !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("EncodeStructured %s: %v", name, err)
		}
	}
}

func TestValidateEventReportsWhatTheSDKSettersKept(t *testing.T) {
	t.Parallel()
	e := sample(t)
	e.SetSource("%zz")
	e.SetExtension("trace-id", "x")
	err := event.Validate(e)
	if !errors.Is(err, event.ErrInvalidEvent) || !strings.Contains(err.Error(), "source") || !strings.Contains(err.Error(), "trace-id") {
		t.Errorf("ValidateEvent = %v", err)
	}
}

func TestErrorsCutLongValues(t *testing.T) {
	t.Parallel()
	h := binary("ce-time", strings.Repeat("x", 5000))
	wantRefused(t, h, nil, "time: not an RFC 3339 time", "(5000 bytes)")
}

// legalText draws CloudEvents strings: any UTF-8 but control characters and noncharacters.
func legalText(least int) *rapid.Generator[string] {
	legal := rapid.Rune().Filter(func(r rune) bool {
		return r >= ' ' && (r < 0x7F || r > 0x9F) && r&0xFFFE != 0xFFFE && (r < 0xFDD0 || r > 0xFDEF)
	})
	tricky := rapid.SampledFrom([]rune(`"% \+=:é` + "\u00a0\u2028"))
	return rapid.StringOfN(rapid.OneOf(legal, tricky), least, -1, -1)
}

func drawEvent(t *rapid.T) event.Event {
	ctx := &cloudevents.EventContextV1{
		ID:     legalText(1).Draw(t, "id"),
		Type:   legalText(1).Draw(t, "type"),
		Source: *types.ParseURIRef(rapid.StringMatching(`(/[a-zA-Z0-9_é -]{1,8}){1,3}|[a-z]+:[a-z/]+|HTTP://[a-z]+/[?]?`).Draw(t, "source")),
	}
	optional := func(name string, g *rapid.Generator[string]) *string {
		if !rapid.Bool().Draw(t, "has "+name) {
			return nil
		}
		s := g.Draw(t, name)
		return &s
	}
	ctx.Subject = optional("subject", legalText(1))
	ctx.DataContentType = optional("datacontenttype", rapid.SampledFrom([]string{
		"application/json", "text/plain; charset=utf-8", "application/x+json", "application/cloudevents+json", `multipart/x; boundary="a b"`,
	}))
	if rapid.Bool().Draw(t, "has time") {
		zone := time.FixedZone("", 60*rapid.IntRange(-14*60, 14*60).Draw(t, "offset"))
		ctx.Time = &types.Timestamp{Time: time.Unix(rapid.Int64Range(-1e10, 1e11).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).In(zone)}
	}
	if rapid.Bool().Draw(t, "has schema") {
		ctx.DataSchema = types.ParseURI(rapid.StringMatching(`https://[a-z]{1,9}/[a-z]{0,9}(#[a-z]{1,3})?`).Draw(t, "schema"))
	}
	name := rapid.StringMatching(`x[a-z0-9]{0,24}`)
	value := rapid.OneOf(
		rapid.Map(legalText(0), func(s string) any { return s }),
		rapid.Map(rapid.Int32(), func(n int32) any { return n }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) any { return b }),
	)
	ctx.Extensions = rapid.MapOfN(name, value, 0, 6).Draw(t, "extensions")
	data := rapid.OneOf(
		rapid.SliceOf(rapid.Byte()),
		rapid.SampledFrom([][]byte{nil, []byte("null"), []byte(`{"a":9007199254740993,"z":1.0}`), []byte(` "x" `), []byte(`"x"`)}),
	).Draw(t, "data")
	return event.Event{Context: ctx, DataEncoded: data}
}

func TestRoundTripKeepsEveryEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		for name, encode := range map[string]func(event.Event) (*nats.Msg, error){
			"binary": event.Encode, "structured": event.EncodeStructured,
		} {
			m, err := encode(e)
			if err != nil {
				t.Fatalf("%s: encode: %v", name, err)
			}
			got, err := event.Decode(overTheWire(t, m.Header), m.Data)
			if err != nil {
				t.Fatalf("%s: decode %v %q: %v", name, m.Header, m.Data, err)
			}
			if describe(got) != describe(e) {
				t.Fatalf("%s: got  %s\nwant %s", name, describe(got), describe(e))
			}
		}
	})
}

// The allocations of a decode are those of the event itself: its context, its
// extension map and one for each extension value.
func TestDecodeAllocatesLittle(t *testing.T) { //nolint:paralleltest // testing.AllocsPerRun counts the whole process
	e := sample(t)
	for source, most := range map[string]float64{"order-service": 8, "https://example.com/orders": 10} {
		e.SetSource(source)
		m, err := event.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		allocations := testing.AllocsPerRun(100, func() {
			if _, err := event.Decode(m.Header, m.Data); err != nil {
				t.Fatal(err)
			}
		})
		if allocations > most {
			t.Errorf("source %s: %v allocations a decode, want at most %v", source, allocations, most)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	e := sample(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Encode(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	m, err := event.Encode(sample(b))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Decode(m.Header, m.Data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeStructured(b *testing.B) {
	e := sample(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.EncodeStructured(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeStructured(b *testing.B) {
	m, err := event.EncodeStructured(sample(b))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(m.Data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Decode(m.Header, m.Data); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDecodedDataIsTheBody(t *testing.T) {
	t.Parallel()
	for _, body := range [][]byte{nil, {}, {0}, []byte("\xff\xfe"), bytes.Repeat([]byte("x"), 1<<16)} {
		e := mustDecode(t, binary(), body)
		if !bytes.Equal(e.Data(), body) {
			t.Errorf("data = %.40q, want %.40q", e.Data(), body)
		}
	}
}
