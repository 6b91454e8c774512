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

// watcher follows the event stream: it counts how orders end, and hands on
// each event when it is seen for the first time.
type watcher struct {
	bus *bus.Bus
	// seen is called for each new event, on the watcher's goroutine.
	seen func(e event.Event)

	mu                           sync.Mutex
	known                        map[event.EventKey]bool
	events, confirmed, cancelled int
}

// run follows until ctx ends.
func (w *watcher) run(ctx context.Context) error {
	err := follow.Read(ctx, w.bus, follow.Options{FromStart: true}, func(m follow.Message) error {
		// What cannot be decoded was injected.
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

// count reports whether e is new.
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

// counts returns how many events were seen, and how orders ended.
func (w *watcher) counts() (events, confirmed, cancelled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events, w.confirmed, w.cancelled
}
