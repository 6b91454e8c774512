package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
)

// Changed is the data of the events breaker.opened.v1, breaker.half-opened.v1 and
// breaker.closed.v1. Their key is "<consumer>-<breaker>". Times are the server's.
type Changed struct {
	Consumer event.Consumer `json:"consumer"`
	Breaker  string         `json:"breaker"`
	// Until is of an open breaker when it may be probed, and of a half-open one when its
	// prober counts as dead.
	Until time.Time `json:"until,omitzero"`
	// Opened is how often the breaker has opened from closed.
	Opened uint64    `json:"opened"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Why    string    `json:"why,omitempty"`
}

// The events of a breaker's changes.
var (
	Opened     = event.Define[Changed]("breaker.opened.v1")
	HalfOpened = event.Define[Changed]("breaker.half-opened.v1")
	Closed     = event.Define[Changed]("breaker.closed.v1")
)

// publish tells of a change on the bus. Whoever publishes it again, or at once with
// others, publishes the same event.
func publish(ctx context.Context, b *bus.Bus, c event.Consumer, name string, s pauses.Breaker) error {
	data := Changed{Consumer: c, Breaker: name, Until: s.Until, Opened: s.Opened, At: s.At, By: s.By, Why: s.Why}
	key := event.Key(string(c) + "-" + name)
	define := Closed
	switch s.State {
	case pauses.Open:
		define = Opened
	case pauses.HalfOpen:
		define = HalfOpened
	case pauses.Closed:
	}
	draft := define.New(key, data)
	draft.ID = fmt.Sprintf("%s-%d-%d", key, s.Opened, s.Term)
	e, err := b.Seal(draft)
	if err != nil {
		return err
	}
	_, err = b.Publish(ctx, e)
	return err
}
