package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/farandole/farandole/event"
)

// EventHandler reacts to one event like a [Handler], but the event's data are not
// decoded.
type EventHandler func(ctx context.Context, e event.Event) (Step, error)

// Middleware puts something around handlers, as in net/http: it is given a handler
// and returns one that calls it, for tracing, a log line or a check that all need.
// What the returned handler does is the event's handling: its step is stored, its
// error is the event's. A panic of the handler passes through it.
type Middleware func(next EventHandler) EventHandler

// Use puts middleware around the handlers that are registered after it; the first one
// is the outermost. A call after a registration is reported by [New], because the
// handlers before it would lack the middleware.
func (r *Registry) Use(m ...Middleware) {
	if len(r.handlers) > 0 || r.others != nil {
		r.errs = append(r.errs, fmt.Errorf("%w: Use after a handler was registered: call it first", ErrConfig))
	}
	r.middleware = append(r.middleware, m...)
}

// around puts the registry's middleware around a handler.
func (r *Registry) around(h handler) handler {
	next := EventHandler(h)
	for i := len(r.middleware) - 1; i >= 0; i-- {
		next = r.middleware[i](next)
	}
	return handler(next)
}

// Delivery is what a handler's context knows of the delivery that it works on.
type Delivery struct {
	Consumer event.Consumer
	// Attempt counts from 1, and anew with each replay.
	Attempt int
	// Replay counts the replays from the dead letters; 0 for an event that never was one.
	Replay int
	// Stream and Sequence are where the message is stored, Stored is since when.
	Stream   string
	Sequence uint64
	Stored   time.Time
}

// End is how one run of a handler ended.
type End struct {
	// Outcome is a value of the label "outcome" of the metric farandole_deliveries_total,
	// as in "handled", "retried", "parked"; or "stale" if others have changed the
	// documents that the run has read: then the handler runs again at once.
	Outcome string
	// Reason is why the event is parked, as in "exhausted"; else "".
	Reason string
	// Again is after how long the event comes again, by this delivery; 0 if it does not,
	// or comes by a timer.
	Again time.Duration
}

// deliveryKey is the key of a context's delivery.
type deliveryKey struct{}

// DeliveryOf returns the delivery that a handler's context is of; ok is false for
// another context, as in a test of the handler without a server.
func DeliveryOf(ctx context.Context) (_ Delivery, ok bool) {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return Delivery{}, false
	}
	d.told.mu.Lock()
	defer d.told.mu.Unlock()
	return Delivery{
		Consumer: d.consumer.cfg.Name, Attempt: d.told.attempt, Replay: d.redrive.Replay,
		Stream: d.stream, Sequence: d.sequence, Stored: d.stored,
	}, true
}

// OnEnd has f called when it is known what became of a run, after its step is stored
// or its failure recorded. f must be quick: it is called by the worker. With a context
// that is no handler's it does nothing and returns false.
func OnEnd(ctx context.Context, f func(End)) bool {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return false
	}
	d.told.mu.Lock()
	defer d.told.mu.Unlock()
	d.told.onEnd = append(d.told.onEnd, f)
	return true
}

// told is what middleware is told of a run.
type told struct {
	mu      sync.Mutex
	attempt int
	reason  string
	onEnd   []func(End)
}

func (t *told) begin(attempt int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt, t.reason = attempt, ""
}

// verdict takes note of why the event is parked.
func (t *told) verdict(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reason = reason
}

// end calls what waits for the end of a run.
func (t *told) end(outcome string, again time.Duration) {
	t.mu.Lock()
	onEnd, end := t.onEnd, End{Outcome: outcome, Reason: t.reason, Again: again}
	t.onEnd = nil
	t.mu.Unlock()
	for _, f := range onEnd {
		f(end)
	}
}
