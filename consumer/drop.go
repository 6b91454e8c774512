package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/event"
)

// Drop takes subjects out of a consumer's durable: the one way to narrow it. The
// events of these subjects that are stored by then and have not taken effect
// never will, also if a later version handles them. No running replica may
// handle them: it would add them again, from there on.
type Drop struct {
	// Consumer is whose durable. Required.
	Consumer event.Consumer
	// Stream is where the durable is. Defaults to the system's event stream.
	Stream string
	// Types are the event types to drop, on the system's event stream, or patterns as the
	// consumer has them.
	Types []event.Type
	// Subjects are filters to drop as they are, on another stream.
	Subjects []string
}

// Dropping is what happens to one subject.
type Dropping struct {
	Subject string `json:"subject"`
	// Pending is how many events are stored and not known to have taken effect. Those
	// that are under way now may do so yet.
	Pending uint64 `json:"pending"`
}

// Plan says what Apply would drop, and changes nothing. Errors match
// [ErrConfig], [event.ErrInvalidConsumer] or [event.ErrInvalidType], [ErrNoDurable],
// [bus.ErrDenied] or [bus.ErrUnavailable].
func (d Drop) Plan(ctx context.Context, b *bus.Bus) ([]Dropping, error) {
	n, subjects, err := d.open(ctx, b)
	if err != nil {
		return nil, err
	}
	pending, err := n.Pending(ctx)
	if err != nil {
		return nil, err
	}
	plan := make([]Dropping, len(subjects))
	for i, subject := range subjects {
		plan[i] = Dropping{Subject: subject, Pending: pending[i]}
	}
	return plan, nil
}

// Apply drops them. Errors are those of Plan.
func (d Drop) Apply(ctx context.Context, b *bus.Bus) error {
	n, _, err := d.open(ctx, b)
	if err != nil {
		return err
	}
	return n.Apply(ctx)
}

func (d Drop) open(ctx context.Context, b *bus.Bus) (*durable.Narrowing, []string, error) {
	stream, subjects := d.Stream, slices.Clone(d.Subjects)
	if stream == "" {
		stream = b.Names().EventsStream()
	}
	errs := []error{d.Consumer.Validate()}
	for _, t := range d.Types {
		errs = append(errs, t.ValidatePattern())
		subjects = append(subjects, filterOf(b.Names(), t))
	}
	if len(subjects) == 0 {
		errs = append(errs, fmt.Errorf("%w: drop: no type or subject given", ErrConfig))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	n, err := durable.Narrow(ctx, b, d.Consumer, stream, subjects)
	return n, subjects, err
}
