package demo

import (
	"context"
	"errors"
	"sync"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
)

const (
	typePlaced    = "order.placed.v1"
	typeConfirmed = "order.confirmed.v1"
	typeCancelled = "order.cancelled.v1"
)

// watcher reads the event stream. It counts the orders that are confirmed and
// cancelled, and calls seen for each event that it has not seen before.
type watcher struct {
	bus *bus.Bus
	// seen is called for each new event, on the goroutine of run.
	seen func(e event.Event)

	mu                           sync.Mutex
	known                        map[event.EventKey]bool
	events, confirmed, cancelled int
}

// run reads until ctx ends.
func (w *watcher) run(ctx context.Context) error {
	err := follow.Read(ctx, w.bus, follow.Options{FromStart: true}, func(m follow.Message) error {
		// A message that cannot be decoded is one of poisonMessages.
		if e, problem := m.Event(); problem == "" && w.count(e) {
			w.seen(e)
		}
		return nil
	})
	if errors.Is(err, ctx.Err()) { // told to stop
		err = nil
	}
	return err
}

// count reports whether e is new, and counts it if so.
func (w *watcher) count(e event.Event) bool {
	key := event.EventKeyOf(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[key] {
		return false
	}
	w.known[key] = true
	w.events++
	switch e.Type() {
	case typeConfirmed:
		w.confirmed++
	case typeCancelled:
		w.cancelled++
	}
	return true
}

// counts returns how many events, and how many confirmed and cancelled orders, there
// are so far.
func (w *watcher) counts() (events, confirmed, cancelled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events, w.confirmed, w.cancelled
}
