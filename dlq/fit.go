package dlq

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

const (
	// emptyHeader is what headers take besides their fields.
	emptyHeader = len("NATS/1.0\r\n" + "\r\n")
	// maxErrorBytes bounds an error text, maxHistoryBytes the attempts, both encoded.
	maxErrorBytes   = 4 << 10
	maxHistoryBytes = 16 << 10
	// maxAttempts bounds the history over all replays.
	maxAttempts = 50
	// longError is an error text in a history, shortError in one that does not
	// fit in full.
	longError  = 1 << 10
	shortError = 160
)

// packer adds headers to a message for as long as they fit, so the caller adds
// the most important first. Headers count towards the server's max_payload,
// and an event just below it leaves hardly any room.
type packer struct {
	msg  *nats.Msg
	room int
	cut  bool
}

// newPacker measures the room; limit is the server's max_payload in bytes, 0
// for none. The error matches [bus.ErrTooLarge] when the message as it is
// exceeds the limit.
func newPacker(m *nats.Msg, limit int64) (*packer, error) {
	used := bus.HeaderSize(m.Header)
	room := int64(bus.MaxHeader)
	if limit > 0 {
		room = min(room, limit-int64(len(m.Data)))
	}
	if int64(used) > room {
		return nil, fmt.Errorf("%w: %d bytes of data and %d of headers; the server takes %d, of these %d for headers",
			bus.ErrTooLarge, len(m.Data), used, limit, bus.MaxHeader)
	}
	return &packer{msg: m, room: max(0, int(room)-max(used, emptyHeader))}, nil
}

// put adds a header if it fits; an empty value is no header.
func (p *packer) put(name, value string) bool {
	if value == "" {
		return true
	}
	size := bus.FieldSize(name, value)
	if size > p.room {
		p.cut = true
		return false
	}
	p.msg.Header[name] = append(p.msg.Header[name], value)
	p.room -= size
	return true
}

// putText adds an error text, encoded and cut to fit into half of the room.
func (p *packer) putText(name, value string) {
	limit := min(maxErrorBytes, p.room/2-bus.FieldSize(name, ""))
	value = cut(value, maxErrorBytes)
	encoded := encode(value)
	if len(encoded) > limit {
		p.cut = true
		encoded = cutEncoded(value, limit)
	}
	p.put(name, encoded)
}

// putAttempts adds a history: shortened texts if it does not fit, then fewer
// attempts. The first and the latest ones stay longest.
func (p *packer) putAttempts(name string, attempts []event.Attempt) {
	if len(attempts) > maxAttempts {
		p.cut = true
		attempts = append(attempts[:1:1], attempts[len(attempts)-maxAttempts+1:]...)
	}
	limit := min(maxHistoryBytes, p.room-bus.FieldSize(name, ""))
	doc := formatAttempts(shortened(attempts, longError))
	if len(doc) > limit {
		p.cut = true
		short := shortened(attempts, shortError)
		for doc = formatAttempts(short); len(doc) > limit && len(short) > 1; doc = formatAttempts(short) {
			short = append(short[:1], short[2:]...)
		}
	}
	p.put(name, doc)
}

// shortened copies attempts with error texts of at most limit bytes.
func shortened(attempts []event.Attempt, limit int) []event.Attempt {
	short := make([]event.Attempt, len(attempts))
	for i, a := range attempts {
		a.Error = cut(a.Error, limit)
		short[i] = a
	}
	return short
}

// reserve keeps size bytes for a dlq-cut header; the function it returns
// writes it if something did not fit.
func (p *packer) reserve(size int) func() {
	if size > p.room {
		size = 0
	}
	p.room -= size
	return func() {
		p.room += size
		if p.cut {
			p.put(headerCut, "1")
		}
	}
}

const ellipsis = "..."

// cut shortens s to at most limit bytes, at a character, and shows that it did.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := max(0, limit-len(ellipsis))
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}

// cutEncoded is cut for a text of which the encoded form must fit.
func cutEncoded(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	limit -= len(ellipsis)
	used, end := 0, 0
	for i, r := range s {
		if used += len(encode(string(r))); used > limit {
			break
		}
		end = i + utf8.RuneLen(r)
	}
	if end == 0 {
		return ""
	}
	return encode(s[:end]) + ellipsis
}
