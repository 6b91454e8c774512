package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/farandole/farandole/event"
)

// decode reads the event and names it in d: by source and id, else by where the
// message is stored, which is the same at every redelivery. An event that does
// not agree with its subject is not named by what it says: that may be the name
// of another event, which would be marked as parked with it.
//
// The error says that the event is to be parked, or, for an event with an expiry
// time, that the server's clock could not be read.
func (c *Consumer) decode(ctx context.Context, d *delivery) (event.Event, error) {
	e, err := event.Decode(d.msg.Header, d.msg.Data)
	if err == nil && c.cfg.From == nil { // a foreign stream has subjects of any form, in redrives too
		err = c.bus.Names().CheckSubject(d.msg.Subject, e)
	}
	if err != nil {
		d.key = d.redrive.Key
		if d.key == "" {
			d.key = event.EventKeyAt(d.stream, d.sequence, d.stored)
		}
		return event.Event{}, withWish(undecodable, err, 0)
	}
	d.key, d.eventType = event.EventKeyOf(e), e.Type()
	if d.redrive.Replay > 0 && d.redrive.Key != "" {
		d.key = d.redrive.Key // its letter's: of a message that was mended and is an event now it is another one
	}
	at, ok := event.Expiry(e)
	if !ok {
		return e, nil
	}
	now, err := c.now(ctx)
	if err == nil && now.After(at) {
		err = withWish(expired, fmt.Errorf("%w at %s", errExpired, at.Format(time.RFC3339)), 0)
	}
	return e, err
}
