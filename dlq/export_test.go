package dlq

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// RedriveMessage is what a replay that was killed before it removed the letter
// had published.
func (s *Stream) RedriveMessage(m *jetstream.RawStreamMsg, replay int) (*nats.Msg, error) {
	return redriveMessage(s.names, s.letterOf(m), replay, event.DefaultPartitions, s.bus.Conn().MaxPayload())
}
