package dlq

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/http/httpguts"

	"github.com/farandole/farandole/event"
)

// What a letter carries beside the original message. Values are written with
// [event.EncodeAttribute]; attempts are JSON in ASCII. So none can hold a line
// break, whatever the error text says.
const (
	headerReason      = "dlq-reason"
	headerClass       = "dlq-class"
	headerError       = "dlq-error"
	headerAttempts    = "dlq-attempts" // JSON array of event.Attempt, oldest first
	headerFailures    = "dlq-failures"
	headerCrashes     = "dlq-crashes"
	headerConsumer    = "dlq-consumer"
	headerHost        = "dlq-host"
	headerVersion     = "dlq-version"
	headerTime        = "dlq-time"         // when it was dead-lettered
	headerLastFailure = "dlq-last-failure" // time
	headerCount       = "dlq-count"        // how often dead-lettered: 1 + replays
	headerFingerprint = "dlq-fingerprint"
	headerEventKey    = "dlq-event-key"
	headerCut         = "dlq-cut" // "1" when not all of the record fitted

	// The first failure and the origin outlive replays.
	headerFirstFailure = "dlq-first-failure" // time
	headerFirstClass   = "dlq-first-class"
	headerFirstError   = "dlq-first-error"
	headerSubject      = "dlq-subject"
	headerStream       = "dlq-stream"
	headerSequence     = "dlq-sequence"
	headerStored       = "dlq-stored" // time

	// headerReplayed is on a letter that is being replayed: JSON of replayedHeader.
	headerReplayed = "dlq-replayed"
	// headerChanges is what people have done to the letter: JSON array of Change. It
	// outlives replays.
	headerChanges = "dlq-changes"
	// headerParked is when the letter was stored first, if it was stored again since.
	headerParked = "dlq-parked" // time

	// headerReplay marks a replayed message: the n-th replay, from 1.
	headerReplay = "dlq-replay"
	// prefixOriginal comes before the name of a header that must not be
	// copied as it is: server control headers, and names that cannot be sent.
	prefixOriginal = "dlq-original-"
	// prefixAttribute comes before the attributes of a structured event,
	// which a reader of headers alone could not see.
	prefixAttribute = "dlq-ce-"
)

// prefixOwn begins the names of what a letter carries, in any case of letters.
const prefixOwn = "dlq-"

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// isOriginal reports whether a header is the event's own, to be copied as it is.
// The NATS client sends no other names than tokens of HTTP. One foreign client's
// odd header name must not keep a message from being parked.
func isOriginal(name string) bool {
	return !event.IsControl(name) && !hasPrefixFold(name, prefixOwn) && httpguts.ValidHeaderFieldName(name)
}

// originals returns the headers that belong to the event itself.
func originals(h nats.Header) nats.Header {
	own := nats.Header{}
	for name, values := range h {
		if isOriginal(name) {
			own[name] = append([]string(nil), values...)
		}
	}
	return own
}

// originalName renames a header that must not be copied.
func originalName(name string) string {
	if httpguts.ValidHeaderFieldName(name) {
		return prefixOriginal + name
	}
	var sb strings.Builder
	sb.WriteString(prefixOriginal)
	for i := range len(name) {
		if c := name[i]; httpguts.IsTokenRune(rune(c)) && c != '%' {
			sb.WriteByte(c)
		} else {
			fmt.Fprintf(&sb, "%%%02X", c)
		}
	}
	return sb.String()
}

// first returns a header's first value, as it is on the wire.
func first(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// text reads a header written by encode; a damaged value is shown as it is.
func text(h nats.Header, name string) string {
	return decode(first(h, name))
}

func number(h nats.Header, name string) int {
	n, err := strconv.Atoi(first(h, name))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func instant(h nats.Header, name string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text(h, name))
	if err != nil {
		return time.Time{}
	}
	return t
}

func encode(s string) string { return event.EncodeAttribute(strings.ToValidUTF8(s, "\uFFFD")) }

func decode(s string) string {
	if plain, err := event.DecodeAttribute(s); err == nil {
		return plain
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return encode(t.UTC().Format(time.RFC3339Nano))
}

func formatCount(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// formatAttempts writes attempts as JSON in printable ASCII; "" when there are none.
func formatAttempts(attempts []event.Attempt) string {
	if len(attempts) == 0 {
		return ""
	}
	return asciiJSON(attempts)
}

// asciiJSON writes a value as JSON in printable ASCII.
func asciiJSON(value any) string {
	doc, err := json.Marshal(value)
	if err != nil { // a time beyond the year 9999: nothing rather than no letter
		return ""
	}
	var sb strings.Builder
	for len(doc) > 0 {
		r, size := utf8.DecodeRune(doc)
		doc = doc[size:]
		switch {
		case r < 0x7f:
			sb.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&sb, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&sb, `\u%04x`, r)
		}
	}
	return sb.String()
}

// parseAttempts reads what formatAttempts wrote; damaged history is no history.
func parseAttempts(s string) []event.Attempt {
	var attempts []event.Attempt
	if json.Unmarshal([]byte(s), &attempts) != nil {
		return nil
	}
	return attempts
}
