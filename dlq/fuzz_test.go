package dlq

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/http/httpguts"

	"github.com/farandole/farandole/bus"
)

// Whatever fails with whatever text, the letter and its replay can be sent,
// carry the same data and stay within the limit.
func FuzzLetter(f *testing.F) {
	f.Add("timeout", "x-name", "value", []byte("{}"), uint16(4000))
	f.Add("l1\r\nNats-Msg-Id: x\r\n\r\n\xff\x1b", "Nats-TTL", "5s", []byte("\xff\x00"), uint16(100))
	f.Add(strings.Repeat("é\xff", 700), "dlq-replay", "3", []byte(nil), uint16(0))
	f.Fuzz(func(t *testing.T, text, name, value string, data []byte, room uint16) {
		m := &nats.Msg{Subject: "shop.events.order.placed.v1.k", Header: nats.Header{"ce-id": {"1"}, name: {value}}, Data: data}
		own := &nats.Msg{Header: originals(m.Header), Data: data}
		limit := int64(onWire(own)) + int64(room)
		if onWire(own)-len(data)+int(room) > bus.MaxHeader {
			t.Skip("more than any server stores")
		}
		l, err := Letter(testNames, m, testOrigin, testStory(attempt(1, text, text), attempt(2, text, text)), limit)
		if err != nil {
			t.Fatal(err)
		}
		messages := []*nats.Msg{l}
		if r, err := redriveMessage(testNames, stored(l), 1, 0, limit); err == nil {
			messages = append(messages, r)
		} else if room > 100 {
			t.Fatal(err)
		}
		for _, m := range messages {
			if int64(onWire(m)) > limit || !bytes.Equal(m.Data, data) {
				t.Errorf("%d bytes of %d", onWire(m), limit)
			}
			for name, values := range m.Header {
				if !httpguts.ValidHeaderFieldName(name) || strings.HasPrefix(name, prefixOwn) && !strings.HasPrefix(name, prefixOriginal) && strings.ContainsAny(values[0], "\r\n\x1b") {
					t.Errorf("header %q: %q", name, values)
				}
			}
		}
	})
}
