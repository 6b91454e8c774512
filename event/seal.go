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
	var room extensionRoom
	_, v, x, err := inspect(e, room[:0])
	if err != nil {
		return nil, err
	}
	m := encode(&v, x, e.Data(), EventKeyOf(e))
	m.Subject = n.EventSubject(t, PartitionKey(e))
	return m, nil
}

// SealedMessage is [Draft.Seal] and [Names.Message] in one, for whoever needs the
// message alone: the event is not made on the way, and checked once.
func (n Names) SealedMessage(d Draft, id Identity) (*nats.Msg, error) {
	var room extensionRoom
	v, x, err := d.attributes(id, new(parsed), room[:0])
	if err != nil {
		return nil, err
	}
	m := encode(&v, x, d.Data, NewEventKey(id.Source, id.ID))
	m.Subject = n.EventSubject(d.Type, d.Key)
	return m, nil
}
