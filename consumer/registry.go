package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/farandole/farandole/event"
)

// Handler reacts to one event. It does not publish: it returns what follows from
// the event, and the consumer makes that durable together with the mark that the
// event is done (ADR 0001). ctx ends at the handler timeout, when the lease is lost,
// and when a shutdown's grace is over.
//
// An error means: try again, with backoff. [Permanent], [RetryAfter], [Yield], [NotYet]
// and [Skip] choose otherwise. A panic counts as an error.
//
// A handler may run more than once for one event, after a failure, a crash or a lost
// lease. Effects outside NATS need an idempotency key: [event.EventKeyOf] is one.
type Handler[T any] func(ctx context.Context, e event.Event, data T) (Step, error)

// handler is a [Handler] with its data type erased.
type handler func(ctx context.Context, e event.Event) (Step, error)

// Registry holds a service's handlers by event type. Register everything
// before the registry is given to [New]; it is not safe for concurrent writes.
type Registry struct {
	handlers map[event.Type]handler
	types    []event.Type // patterns included
	others   handler      // of types without a handler of their own
	errs     []error

	middleware []Middleware
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{handlers: map[event.Type]handler{}} }

// Handle registers h for an event type. Data that does not decode as T is
// dead-lettered with reason "decode" and h is not called. A second handler for
// one type and an illegal type are reported by [New], so that a service's
// registrations need no error handling of their own.
//
// With [Config.From] the type is what others call it, to the letter, as in
// event.Define[Pull]("com.github.pull.create").
func Handle[T any](r *Registry, d event.Definition[T], h Handler[T]) {
	HandleEvent(r, d.Type(), func(ctx context.Context, e event.Event) (Step, error) {
		data, err := d.Decode(e)
		if err != nil {
			return Step{}, withWish(undecodable, err, 0)
		}
		return h(ctx, e, data)
	})
}

// HandleEvent registers h for an event type like [Handle], but does not decode the
// event's data: for handlers that pass events on rather than read them.
//
// t can also be a pattern, for an audit or a log: "order.*" is all types of the domain
// order, "order.placed.*" all versions of one, "*" all events of the system. The type's
// own handler comes first, then that of the longest pattern. Patterns need a ledger that
// does not count by type, so not dedup.Partitions. A handler of "*" also gets what it emits.
func HandleEvent(r *Registry, t event.Type, h func(ctx context.Context, e event.Event) (Step, error)) {
	if _, taken := r.handlers[t]; taken {
		r.errs = append(r.errs, fmt.Errorf("%w: two handlers for %s", ErrConfig, t))
		return
	}
	r.types = append(r.types, t)
	r.handlers[t] = r.around(h)
}

// HandleOthers registers h for the events of a foreign stream ([Config.From]) whose
// type has no handler of its own: such a stream is filtered by subject, not by type.
// Without it these events are given back until a replica has a handler. h returns
// [Skip] for those that are not wanted.
func HandleOthers(r *Registry, h func(ctx context.Context, e event.Event) (Step, error)) {
	if r.others != nil {
		r.errs = append(r.errs, fmt.Errorf("%w: two handlers for other types", ErrConfig))
		return
	}
	r.others = r.around(h)
}

// handlerOf returns the handler of an event type as events bear it; err matches
// [event.ErrInvalidType] when it is none of Farandole's and has no handler.
func (r *Registry) handlerOf(n event.Names, eventType string) (h handler, t event.Type, err error) {
	if h, ok := r.handlers[event.Type(eventType)]; ok {
		return h, event.Type(eventType), nil
	}
	t, err = n.TypeOf(eventType)
	for pattern := t; err == nil && pattern != ""; pattern = wider(pattern) {
		if h, ok := r.handlers[pattern]; ok {
			return h, t, nil
		}
	}
	if r.others != nil {
		return r.others, event.Type(eventType), nil
	}
	return nil, t, err
}

// Handles reports whether a type has a handler, its own or that of a pattern.
func (r *Registry) Handles(t event.Type) bool {
	h, _, err := r.handlerOf(event.Names{}, string(t))
	return h != nil && err == nil
}

// Types returns the registered event types in the order of registration.
func (r *Registry) Types() []event.Type { return append([]event.Type(nil), r.types...) }

// Invoke runs the handler for e in this goroutine, contained like in a running
// consumer (a panic is an error), and returns its step. It needs no server:
// tests of handlers use it through bustest.
func (r *Registry) Invoke(ctx context.Context, n event.Names, e event.Event) (Step, error) {
	h, t, err := r.handlerOf(n, e.Type())
	if err != nil {
		return Step{}, withWish(undecodable, err, 0)
	}
	if h == nil {
		return Step{}, fmt.Errorf("%w: no handler for %s", ErrConfig, t)
	}
	return contain(ctx, h, e)
}

// wider is the next pattern that matches what a type or pattern does: "order.placed.*" for
// "order.placed.v1", then "order.*", "*" and "".
func wider(t event.Type) event.Type {
	s, pattern := strings.CutSuffix(string(t), "*")
	s = strings.TrimSuffix(s, ".")
	if i := strings.LastIndexByte(s, '.'); i >= 0 {
		return event.Type(s[:i+1] + "*")
	}
	if pattern && s == "" {
		return ""
	}
	return "*"
}

// filters are the subjects of all that is registered, without those that others cover.
func (r *Registry) filters(n event.Names) (filters []string) {
	for _, t := range r.types {
		filters = append(filters, filterOf(n, t))
	}
	return slices.DeleteFunc(slices.Clone(filters), func(f string) bool {
		return slices.ContainsFunc(filters, func(other string) bool { return other != f && event.SubjectCovers(other, f) })
	})
}

// filterOf is the subject of an event type, or of those of a pattern.
func filterOf(n event.Names, t event.Type) string {
	if domain, ok := strings.CutSuffix(string(t), "*"); ok {
		return n.Root("events." + domain + ">")
	}
	return n.TypeFilter(t)
}

// validate joins what is wrong with the registrations. foreign says that events
// come from a stream that is not Farandole's, byType that the ledger counts by type.
func (r *Registry) validate(foreign, byType bool) error {
	if r == nil {
		return nil // New says that there is none
	}
	errs := slices.Clone(r.errs)
	for _, t := range r.types {
		switch err := t.ValidatePattern(); {
		case t.IsPattern() && foreign:
			errs = append(errs, fmt.Errorf("%w: pattern %s with From: narrow its subjects, and use HandleOthers", ErrConfig, t))
		case t.IsPattern() && byType:
			errs = append(errs, fmt.Errorf("%w: pattern %s with the ledger dedup.Partitions, which counts by event type: use another ledger", ErrConfig, t))
		case !foreign && err != nil:
			errs = append(errs, err)
		case t == "":
			errs = append(errs, fmt.Errorf("%w: a handler for no type", ErrConfig))
		}
	}
	if !foreign && r.others != nil {
		errs = append(errs, fmt.Errorf("%w: HandleOthers needs From: the event stream is filtered by type", ErrConfig))
	}
	if len(r.handlers) == 0 && r.others == nil && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%w: no handlers registered", ErrConfig))
	}
	return errors.Join(errs...)
}
