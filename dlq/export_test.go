package dlq

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// RedriveMessage is what a replay that was killed before it removed the letter
// had published.
func (s *Stream) RedriveMessage(m *jetstream.RawStreamMsg, replay int) (*nats.Msg, error) {
	return redriveMessage(s.names, s.letterOf(m), replay, event.DefaultPartitions, s.bus.Conn().MaxPayload())
}

// EditAfter edits a letter that was read before meanwhile was called.
func (s *Stream) EditAfter(ctx context.Context, id string, e Edit, meanwhile func()) error {
	l, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if meanwhile != nil {
		meanwhile()
	}
	_, err = s.editLetter(ctx, l, e)
	return err
}
