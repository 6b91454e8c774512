package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
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
	// Types are the event types to drop, on the system's event stream.
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
	n, err := d.open(ctx, b)
	if err != nil {
		return nil, err
	}
	var plan []Dropping
	for _, subject := range n.subjects {
		from := n.durable.AckFloor.Stream
		if n.catchUp != nil && slices.Contains(filtersOf(n.catchUp.Config), subject) {
			from = min(from, n.catchUp.AckFloor.Stream)
		}
		pending, err := countPending(ctx, b, n.stream, jetstream.ConsumerConfig{
			FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from + 1,
		})
		if err != nil {
			return nil, fmt.Errorf("consumer: drop: count %s: %w", subject, err)
		}
		plan = append(plan, Dropping{Subject: subject, Pending: pending})
	}
	return plan, nil
}

// Apply drops them. Errors are those of Plan.
func (d Drop) Apply(ctx context.Context, b *bus.Bus) error {
	n, err := d.open(ctx, b)
	if err != nil {
		return err
	}
	stream, err := b.Stream(ctx, n.stream)
	if err != nil {
		return fmt.Errorf("consumer: drop: %w", err)
	}
	cfg := n.durable.Config
	cfg.FilterSubject, cfg.FilterSubjects = "", n.without(filtersOf(cfg))
	// Replicas read there what they need not look for a handler of any more.
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	for _, subject := range n.subjects {
		cfg.Metadata[droppedKey+subject] = strconv.FormatUint(stream.CachedInfo().State.LastSeq, 10)
	}
	if err := n.update(ctx, b, cfg); err != nil {
		return err
	}
	if n.catchUp == nil {
		return nil
	}
	cfg = n.catchUp.Config
	cfg.FilterSubject, cfg.FilterSubjects = "", n.without(filtersOf(cfg))
	if len(cfg.FilterSubjects) > 0 {
		return n.update(ctx, b, cfg)
	}
	err = b.Ask(ctx, "CONSUMER.DELETE."+n.stream+"."+cfg.Durable, func(ctx context.Context) error {
		return b.JetStream().DeleteConsumer(ctx, n.stream, cfg.Durable)
	})
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("consumer: drop: %w", err)
	}
	return nil
}

// narrowing is a drop and what it changes.
type narrowing struct {
	stream   string
	subjects []string
	durable  *jetstream.ConsumerInfo
	catchUp  *jetstream.ConsumerInfo // nil if there is none
}

func (d Drop) open(ctx context.Context, b *bus.Bus) (*narrowing, error) {
	n := &narrowing{stream: d.Stream, subjects: slices.Clone(d.Subjects)}
	if n.stream == "" {
		n.stream = b.Names().EventsStream()
	}
	errs := []error{d.Consumer.Validate()}
	for _, t := range d.Types {
		errs = append(errs, t.Validate())
		n.subjects = append(n.subjects, b.Names().TypeFilter(t))
	}
	if len(n.subjects) == 0 {
		errs = append(errs, fmt.Errorf("%w: drop: no type or subject given", ErrConfig))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	if n.durable, err = look(ctx, b, n.stream, string(d.Consumer)); err != nil {
		return nil, fmt.Errorf("consumer: drop: %w", err)
	}
	if n.durable == nil {
		return nil, fmt.Errorf("%w %s on stream %s", ErrNoDurable, d.Consumer, n.stream)
	}
	have := filtersOf(n.durable.Config)
	for _, subject := range n.subjects {
		if !slices.Contains(have, subject) {
			return nil, fmt.Errorf("%w: drop: durable %s does not have %s but %v", ErrConfig, d.Consumer, subject, have)
		}
	}
	if len(n.without(have)) == 0 {
		return nil, fmt.Errorf("%w: drop: durable %s would have no subject left, and take the whole stream: remove it with `nats consumer rm %s %s`",
			ErrConfig, d.Consumer, n.stream, d.Consumer)
	}
	if n.catchUp, err = look(ctx, b, n.stream, catchUpName(string(d.Consumer))); err != nil {
		return nil, fmt.Errorf("consumer: drop: %w", err)
	}
	return n, nil
}

func (n *narrowing) without(filters []string) []string {
	return slices.DeleteFunc(slices.Clone(filters), func(f string) bool { return slices.Contains(n.subjects, f) })
}

func (n *narrowing) update(ctx context.Context, b *bus.Bus, cfg jetstream.ConsumerConfig) error {
	err := b.Ask(ctx, "CONSUMER.CREATE."+n.stream+"."+cfg.Durable, func(ctx context.Context) error {
		_, err := b.JetStream().UpdateConsumer(ctx, n.stream, cfg)
		return err
	})
	if err != nil {
		return fmt.Errorf("consumer: drop: %w", err)
	}
	return nil
}
