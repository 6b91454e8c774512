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
// breaker.closed.v1. Their key is "<consumer>-<breaker>" and their source "/<consumer>".
// Times are the server's.
type Changed struct {
	Consumer event.Consumer `json:"consumer"`
	Breaker  string         `json:"breaker"`
	// Until is of an open breaker when it may be probed, and of a half-open one when its
	// prober counts as dead. Zero if it stays open until somebody closes it.
	Until time.Time `json:"until,omitzero"`
	// Forced says that an operator has set the state.
	Forced bool `json:"forced,omitempty"`
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

func changed(c event.Consumer, name string, s pauses.Breaker) Changed {
	return Changed{
		Consumer: c, Breaker: name, Until: s.Until, Forced: s.Forced, Opened: s.Opened, At: s.At, By: s.By, Why: s.Why,
	}
}

// publish tells of a change on the bus. Whoever publishes it again, or at once with
// others, publishes the same event. alone is the process that does not share it, or "".
func publish(ctx context.Context, b *bus.Bus, c event.Consumer, name string, s pauses.Breaker, alone string) error {
	key := event.Key(string(c) + "-" + name)
	define := Closed
	switch s.State {
	case pauses.Open:
		define = Opened
	case pauses.HalfOpen:
		define = HalfOpened
	case pauses.Closed:
	}
	draft := define.New(key, changed(c, name, s))
	draft.ID = fmt.Sprintf("%s-%d-%d", key, s.Opened, s.Term)
	if alone != "" {
		draft.ID += " " + alone
	}
	e, err := b.Names().Seal(draft, "/"+string(c)) // not the connection's: all processes publish the same event
	if err != nil {
		return err
	}
	_, err = b.Publish(ctx, e)
	return err
}
