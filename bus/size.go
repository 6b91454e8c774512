package bus

import (
	"fmt"
	"net/textproto"

	"github.com/nats-io/nats.go"
)

// MaxHeader is the most that a stream stores as headers of one message, in bytes.
const MaxHeader = 1<<16 - 1

// PayloadSize is the part of a message that the server's max_payload bounds:
// headers and data.
func PayloadSize(m *nats.Msg) int64 { return int64(HeaderSize(m.Header) + len(m.Data)) }

// HeaderSize is what headers take in a message, 0 if there are none.
func HeaderSize(h nats.Header) int {
	if len(h) == 0 {
		return 0
	}
	size := len("NATS/1.0\r\n" + "\r\n")
	for name, values := range h {
		for _, value := range values {
			size += FieldSize(name, value)
		}
	}
	return size
}

// FieldSize is what one value of a header takes. The client trims it.
func FieldSize(name, value string) int {
	return len(name) + len(": ") + len(textproto.TrimString(value)) + len("\r\n")
}

// Fit says why a message can never be stored, as far as that is known without
// asking a stream: its headers are too large for any, or the whole of it is for
// this server. The error matches [ErrTooLarge].
func (b *Bus) Fit(m *nats.Msg) error { return b.fit(m, 0) }

// fit is [Bus.Fit] for a message that gets reserved bytes of headers more.
func (b *Bus) fit(m *nats.Msg, reserved int) error {
	headers := HeaderSize(m.Header)
	if headers > MaxHeader {
		return fmt.Errorf("bus: publish %s: %w: %d bytes of headers, a stream takes %d", m.Subject, ErrTooLarge, headers, MaxHeader)
	}
	if size, limit := headers+len(m.Data), b.nc.MaxPayload(); limit > 0 && int64(size+reserved) > limit {
		return fmt.Errorf("bus: publish %s: %w: %d bytes, the server takes %d", m.Subject, ErrTooLarge, size, limit)
	}
	return nil
}
