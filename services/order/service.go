package order

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/services/events"
)

// Name is the service's consumer name.
const Name bus.Consumer = "order"

// source is the CloudEvents source of all that the service emits. It does not
// come from the connection: with it changes the identity of events.
const source = "/" + string(Name)

// lateRecord is how long an event about an unknown order waits for the next
// attempt. It is no random delay, so that MaxAttempts times this is how late a
// record may be: four seconds by default.
const lateRecord = time.Second

// Config is what the service may be told.
type Config struct {
	// Deadline is how long an order may take from when it was placed; one that
	// has not ended by then is cancelled. At least 1 s, at most
	// [consumer.MaxTimer]. Defaults to 15 min.
	Deadline time.Duration
	// Consumer are settings of the consumer; the service fills in name,
	// source, metrics and logger. Defaults to the consumer's defaults.
	Consumer consumer.Config
	// Logger. Defaults to silence.
	Logger zerolog.Logger
}

const (
	defaultDeadline = 15 * time.Minute
	// deadlineTimer is the name of an order's timer.
	deadlineTimer = "deadline"
)

// Service takes orders and follows them to their end. It is safe for
// concurrent use.
type Service struct {
	bus      *bus.Bus
	deadline time.Duration
	log      zerolog.Logger
	registry *consumer.Registry
	consumer *consumer.Consumer
	metrics  *prometheus.Registry
	handler  http.Handler
	// open opens the store. Tests put something around it.
	open func(ctx context.Context) (store, error)
	// behind is signalled when something could not be announced.
	behind chan struct{}

	mu sync.Mutex
	st store // nil until Run has opened it
}

// New checks the configuration and does no I/O. Errors match
// [consumer.ErrConfig].
func New(b *bus.Bus, cfg Config) (*Service, error) {
	if cfg.Deadline == 0 {
		cfg.Deadline = defaultDeadline
	}
	if cfg.Deadline < time.Second || cfg.Deadline > consumer.MaxTimer {
		return nil, fmt.Errorf("order: %w: Deadline %v: want at least 1s and at most %v", consumer.ErrConfig, cfg.Deadline, consumer.MaxTimer)
	}
	s := &Service{
		bus: b, deadline: cfg.Deadline, log: cfg.Logger, registry: consumer.NewRegistry(), metrics: prometheus.NewRegistry(),
		open:   func(ctx context.Context) (store, error) { return bus.OpenBucket[Order](ctx, b, Bucket) },
		behind: make(chan struct{}, 1),
	}
	s.handler = s.routes()
	consumer.Handle(s.registry, events.OrderPlaced, s.placed)
	consumer.Handle(s.registry, events.OrderDeadline, reaction(s, onDeadline, func(p events.Deadline) string { return p.OrderID }))
	consumer.Handle(s.registry, events.PaymentCaptured, reaction(s, onCaptured, func(p events.Captured) string { return p.OrderID }))
	consumer.Handle(s.registry, events.InventoryReserved, reaction(s, onReserved, func(p events.Reserved) string { return p.OrderID }))
	consumer.Handle(s.registry, events.PaymentDeclined, reaction(s, onDeclined, func(p events.Declined) string { return p.OrderID }))
	consumer.Handle(s.registry, events.PaymentRefunded, reaction(s, onRefunded, func(p events.Refunded) string { return p.OrderID }))

	cfg.Consumer.Name, cfg.Consumer.Source = Name, source
	cfg.Consumer.Metrics, cfg.Consumer.Logger = s.metrics, cfg.Logger
	var err error
	if s.consumer, err = consumer.New(b, s.registry, cfg.Consumer); err != nil {
		return nil, fmt.Errorf("order: %w", err)
	}
	return s, nil
}

// Registry returns the service's handlers.
func (s *Service) Registry() *consumer.Registry { return s.registry }

// Stats returns the consumer's counts.
func (s *Service) Stats() consumer.Stats { return s.consumer.Stats() }

// Metrics are the service's metrics.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

// Handler returns the HTTP interface. It answers 503 until Run has opened the bucket.
func (s *Service) Handler() http.Handler { return s.handler }

// Health returns nil while the service can work, else an error that matches
// [ErrNotReady], or those of [bus.Bus.Health] or [consumer.Consumer.Health].
func (s *Service) Health() error {
	if _, err := s.store(); err != nil {
		return err
	}
	return s.consumer.Health()
}

// Run opens the bucket, announces what a crash left unannounced and, whenever
// something could not be announced, tries until it is, and consumes until ctx
// ends. It returns an error matching [bus.ErrNoStream] or [bus.ErrUnavailable]
// when the bucket cannot be opened, and the errors of [consumer.Consumer.Run].
// It can be called once.
func (s *Service) Run(ctx context.Context) error {
	st, err := s.open(ctx)
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	s.mu.Lock()
	s.st = st
	s.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	var catchingUp sync.WaitGroup
	catchingUp.Go(func() { s.catchUp(ctx, st) })
	defer catchingUp.Wait()
	defer cancel()
	if err := s.consumer.Run(ctx); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	return nil
}

// store returns the opened store if it can be reached: while the connection is
// down every call would take its full timeout.
func (s *Service) store() (store, error) {
	s.mu.Lock()
	st := s.st
	s.mu.Unlock()
	if st == nil {
		return nil, ErrNotReady
	}
	if err := s.bus.Health(); err != nil {
		return nil, err
	}
	return st, nil
}

// now is the time as records have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// reaction makes a handler of a decision. The new state and what follows from
// the event are written together, so a run that stops after the write is
// repeated by the next one. A record that somebody else wrote meanwhile is
// decided on again from its new state; that is no failure.
func reaction[T any](s *Service, decide func(o Order, p T) (Order, []bus.Draft, error), orderID func(p T) string) consumer.Handler[T] {
	return func(ctx context.Context, e bus.Event, p T) (consumer.Step, error) {
		st, err := s.store()
		if err != nil {
			return consumer.Step{}, err
		}
		id := bus.Key(orderID(p))
		if id == "" {
			return consumer.Step{}, consumer.Permanent(fmt.Errorf("%w: order_id is missing", events.ErrInvalid))
		}
		for {
			o, revision, err := st.Get(ctx, id)
			if err != nil {
				return consumer.Step{}, err
			}
			if drafts, ok := o.Steps.Of(e); ok {
				return stepOf(id, drafts), nil
			}
			next, drafts, err := decide(o, p)
			switch {
			case errors.Is(err, ErrUnknownOrder):
				return consumer.Step{}, consumer.RetryAfter(err, lateRecord)
			case err != nil:
				return consumer.Step{}, err
			case next.Status == o.Status:
				return consumer.Step{}, consumer.Skip
			}
			next.Updated = now()
			next.Announced = true // else nobody would know of the order
			next.Steps = next.Steps.With(e, drafts)
			_, err = st.Put(ctx, id, next, revision)
			if errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
				continue
			}
			if err != nil {
				return consumer.Step{}, err
			}
			return stepOf(id, drafts), nil
		}
	}
}

// stepOf is the step in which drafts follow. What ends the order ends the wait
// for it, too.
func stepOf(id bus.Key, drafts []bus.Draft) consumer.Step {
	step := consumer.Emit(drafts...)
	for _, d := range drafts {
		if d.Type == events.OrderConfirmed.Type() || d.Type == events.OrderCancelled.Type() {
			step.Cancel = []consumer.TimerID{{Name: deadlineTimer, Key: id}}
		}
	}
	return step
}

// placed sets the deadline of an order that this service has announced. What
// else calls itself a new order is not waited for.
func (s *Service) placed(ctx context.Context, e bus.Event, p events.Placed) (consumer.Step, error) {
	st, err := s.store()
	if err != nil {
		return consumer.Step{}, err
	}
	if e.Source() != source {
		return consumer.Step{}, consumer.Skip
	}
	o, _, err := st.Get(ctx, bus.Key(p.OrderID))
	switch {
	case err != nil:
		return consumer.Step{}, err
	case o.Status == "":
		return consumer.Step{}, consumer.RetryAfter(unknown("order placed", p.OrderID), lateRecord)
	case e.ID() != o.eventID("placed"), o.Status != Placed && o.Status != Paid:
		return consumer.Step{}, consumer.Skip
	}
	return consumer.Step{Timers: []consumer.Timer{{
		Name: deadlineTimer, After: s.deadline,
		Event: events.OrderDeadline.New(o.key(), events.Deadline{OrderID: o.ID, Instance: o.Instance}),
	}}}, nil
}
