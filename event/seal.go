package event

import (
	"time"

	"github.com/nats-io/nats.go"
)

// Seal gives a draft the source, [Draft.ID] or a random id, and the time.
// Errors match [ErrInvalidEvent] or [ErrInvalidType].
func (n Names) Seal(d Draft, source string) (Event, error) {
	id := d.ID
	if id == "" {
		var err error
		if id, err = newID(); err != nil {
			return Event{}, err
		}
	}
	return d.Seal(Identity{ID: id, Source: source, Time: time.Now().UTC(), TypePrefix: n.TypePrefix})
}

// Message encodes e in binary mode for its subject, with the event key as its
// message id. An event that cannot be published is refused here, before
// anything reaches a connection: errors match [ErrInvalidType] or [ErrInvalidEvent].
func (n Names) Message(e Event) (*nats.Msg, error) {
	t, err := n.TypeOf(e.Type())
	if err != nil {
		return nil, err
	}
	m, err := Encode(e)
	if err != nil {
		return nil, err
	}
	m.Subject = n.EventSubject(t, PartitionKey(e))
	m.Header.Set(nats.MsgIdHdr, string(EventKeyOf(e)))
	return m, nil
}
