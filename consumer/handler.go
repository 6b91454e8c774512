package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/state"
)

// Step is what handling one event makes durable, all of it once. The zero
// Step is "handled, nothing follows".
type Step struct {
	// Events are the outgoing events, in order. Their ids are derived from
	// the consumer, the causing event and their index, so a handler that runs
	// again must return the same events in the same order.
	Events []bus.Draft
	// Timers are events for later, in any order; see [Timer].
	Timers []Timer
	// Cancel ends timers that this consumer has set. A timer that has fired,
	// or was never set, is no error.
	Cancel []TimerID
	// State are changes of documents in the event stream, committed together
	// with the events. They need the ledger [github.com/farandole/farandole/dedup.Stream].
	State []state.Change
}

// Emit returns the step that sends these events.
func Emit(events ...bus.Draft) Step { return Step{Events: events} }

// Handler reacts to one event. It returns what follows from it instead of
// publishing: the consumer makes that durable together with the mark that the
// event is done (ADR 0001). It may run more than once for one event, after a
// failure or a crash; effects outside NATS need an idempotency key, for which
// [bus.EventKeyOf] is made. ctx ends at the handler timeout, when the lease is
// lost, and when a shutdown's grace is over.
//
// An error means: try again, with backoff; [Permanent], [RetryAfter] and
// [Skip] choose otherwise. A panic counts as an error.
type Handler[T any] func(ctx context.Context, e bus.Event, data T) (Step, error)

// handler is a [Handler] with its data type erased.
type handler func(ctx context.Context, e bus.Event) (Step, error)

// Registry holds a service's handlers by event type. Register everything
// before the registry is given to [New]; it is not safe for concurrent writes.
type Registry struct {
	handlers map[bus.Type]handler
	types    []bus.Type
	errs     []error
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{handlers: map[bus.Type]handler{}} }

// Handle registers h for an event type. Data that does not decode as T is
// dead-lettered with reason "decode" and h is not called. A second handler for
// one type and an illegal type are reported by [New], so that a service's
// registrations need no error handling of their own.
func Handle[T any](r *Registry, d bus.Definition[T], h Handler[T]) {
	HandleEvent(r, d.Type(), func(ctx context.Context, e bus.Event) (Step, error) {
		data, err := d.Decode(e)
		if err != nil {
			return Step{}, &outcomeError{outcome: undecodable, err: err}
		}
		return h(ctx, e, data)
	})
}

// HandleEvent registers h for an event type like [Handle], but leaves the
// event's data to h, whatever they are: for handlers that pass events on
// rather than react to what they say.
func HandleEvent(r *Registry, t bus.Type, h func(ctx context.Context, e bus.Event) (Step, error)) {
	if err := t.Validate(); err != nil {
		r.errs = append(r.errs, err)
		return
	}
	if _, taken := r.handlers[t]; taken {
		r.errs = append(r.errs, fmt.Errorf("%w: two handlers for %s", ErrConfig, t))
		return
	}
	r.types = append(r.types, t)
	r.handlers[t] = h
}

func (r *Registry) handles(t bus.Type) bool {
	_, ok := r.handlers[t]
	return ok
}

// Types returns the registered event types in the order of registration.
func (r *Registry) Types() []bus.Type { return append([]bus.Type(nil), r.types...) }

// Invoke runs the handler for e in this goroutine, contained like in a running
// consumer (a panic is an error), and returns its step. It needs no server:
// tests of handlers use it through bustest.
func (r *Registry) Invoke(ctx context.Context, n bus.Names, e bus.Event) (Step, error) {
	t, err := n.TypeOf(e.Type())
	if err != nil {
		return Step{}, &outcomeError{outcome: undecodable, err: err}
	}
	h, ok := r.handlers[t]
	if !ok {
		return Step{}, fmt.Errorf("%w: no handler for %s", ErrConfig, t)
	}
	return contain(ctx, h, e)
}

func (r *Registry) validate() error {
	errs := r.errs
	if len(r.handlers) == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%w: no handlers registered", ErrConfig))
	}
	return errors.Join(errs...)
}
