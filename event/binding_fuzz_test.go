package event_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// FuzzDecode checks that no message makes Decode panic or answer differently
// the second time, and that whatever it accepts can be published again, in both
// modes, and is the same event then.
func FuzzDecode(f *testing.F) {
	const minimal = "ce-specversion: 1.0\r\nce-id: A\r\nce-source: /s\r\nce-type: t\r\n"
	for _, headers := range []string{
		"", minimal,
		minimal + "ce-subject: caf%C3%A9%20%22x%22 100%\r\nce-time: 2026-03-01t10:00:00.5+05:30\r\n",
		minimal + "ce-datacontenttype: text/plain; charset=utf-8\r\nce-dataschema: HTTP://x/#\r\nce-n: -1\r\n",
		minimal + "CE-ID: %41\r\nce-x-y: z\r\nContent-Type: application/json\r\n",
		minimal + "ce-subject: %0D%0ANats-Msg-Id:%20x\r\nNats-Msg-Id: y\r\n",
		strings.Replace(minimal, "/s", "HTTP://x/a b?#", 1),
		"Content-Type: application/cloudevents+json; charset=utf-8\r\n",
		"Content-Type: application/cloudevents-batch+json\r\n",
	} {
		for _, body := range []string{
			"", "hello", "[]", `{"specversion":"1.0"}`,
			string(envelope(`,"data":{"z":1.0,"a":9007199254740993}`)),
			string(envelope(`,"subject":"\ud83d\ude00","n":-2147483648,"b":true,"data_base64":"\u002B+++"`)),
			string(envelope(` , "time" : "2026-03-01t10:00:00z" , "datacontenttype" : "text/plain" , "data" : "a\nb" `)),
			string(envelope(`,"source":"b","data":null,"x":"\ud800"`)),
		} {
			f.Add(headers, []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, headers string, body []byte) {
		header, err := nats.DecodeHeadersMsg([]byte("NATS/1.0\r\n" + headers + "\r\n"))
		if err != nil {
			t.Skip("no NATS header block")
		}
		e, err := event.Decode(header, body)
		if _, again := event.Decode(header, body); (err == nil) != (again == nil) || err != nil && err.Error() != again.Error() {
			t.Fatalf("decoded twice: %v, then %v", err, again)
		}
		if err != nil {
			if !errors.Is(err, event.ErrDecode) || !utf8.ValidString(err.Error()) {
				t.Fatalf("error %q", err)
			}
			return
		}
		for name, encode := range map[string]func(event.Event) (*nats.Msg, error){
			"binary": event.Encode, "structured": event.EncodeStructured,
		} {
			m, err := encode(e)
			if err != nil {
				t.Fatalf("%s: %s does not encode: %v", name, describe(e), err)
			}
			received := overTheWire(t, m.Header)
			if len(received) != len(m.Header) {
				t.Fatalf("%s: header %v became %v", name, m.Header, received)
			}
			got, err := event.Decode(received, m.Data)
			if err != nil {
				t.Fatalf("%s: %v %q does not decode: %v", name, m.Header, m.Data, err)
			}
			if describe(got) != describe(e) {
				t.Fatalf("%s: got  %s\nwant %s", name, describe(got), describe(e))
			}
		}
	})
}

// FuzzAttribute checks that decoding undoes encoding, for any text, that what is
// encoded is printable ASCII, and that decoding is total and gives UTF-8.
func FuzzAttribute(f *testing.F) {
	for _, s := range []string{
		"", "plain", `café №7 "x" 100%`, "100%2525", "%FF", "%C0%AF", "%ED%A0%80", "%4", "%zz", "%", `"quoted \" text"`, `"`, `""`, `"\`,
		"a\r\nNats-Msg-Id: x", "\x00\x7f\u0085\u2028", "\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		encoded := event.EncodeAttribute(s)
		if i := strings.IndexFunc(encoded, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }); i >= 0 {
			t.Fatalf("%q encoded as %q", s, encoded)
		}
		back, err := event.DecodeAttribute(encoded)
		if utf8.ValidString(s) != (err == nil) || err == nil && back != s {
			t.Fatalf("%q came back as %q, %v", s, back, err)
		}
		decoded, err := event.DecodeAttribute(s)
		if err != nil {
			if !errors.Is(err, event.ErrDecode) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if !utf8.ValidString(decoded) {
			t.Fatalf("%q decoded as %q", s, decoded)
		}
	})
}
