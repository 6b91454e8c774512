package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/services/events"
)

// Config is what the service may be told.
type Config struct {
	// Stock is the initial stock by SKU, in pieces, written where a SKU has
	// none yet. Defaults to a million each of widget, gadget and anvil, and no unicorn.
	Stock map[string]int64
	// Consumer are settings of the consumer; the service fills in name,
	// source, metrics and logger. Defaults to the consumer's defaults.
	Consumer consumer.Config
	// Logger of the consumer. Defaults to silence.
	Logger zerolog.Logger
}

// Service keeps the stock.
type Service struct {
	bus      *bus.Bus
	cfg      Config
	registry *consumer.Registry
	consumer *consumer.Consumer
	metrics  *prometheus.Registry

	mu    sync.Mutex
	store store            // nil until Run has opened it
	desks map[string]*desk // by SKU
}

// Name is the service's consumer name.
const Name bus.Consumer = "inventory"

// ErrNotReady is returned while the service has not opened its store.
var ErrNotReady = errors.New("inventory: not ready")

// New checks the configuration and does no I/O.
func New(b *bus.Bus, cfg Config) (*Service, error) {
	if cfg.Stock == nil {
		cfg.Stock = map[string]int64{"widget": 1_000_000, "gadget": 1_000_000, "anvil": 1_000_000, "unicorn": 0}
	}
	s := &Service{bus: b, cfg: cfg, registry: consumer.NewRegistry(), metrics: prometheus.NewRegistry(), desks: map[string]*desk{}}
	consumer.Handle(s.registry, events.PaymentCaptured, s.captured)
	consumer.Handle(s.registry, events.OrderConfirmed, s.confirmed)
	consumer.Handle(s.registry, events.OrderCancelRequested, s.cancelRequested)

	cfg.Consumer.Name, cfg.Consumer.Source = Name, "/"+string(Name)
	cfg.Consumer.Metrics, cfg.Consumer.Logger = s.metrics, cfg.Logger
	var err error
	if s.consumer, err = consumer.New(b, s.registry, cfg.Consumer); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	return s, nil
}

// Registry returns the service's handlers.
func (s *Service) Registry() *consumer.Registry { return s.registry }

// Stats returns the consumer's counts.
func (s *Service) Stats() consumer.Stats { return s.consumer.Stats() }

// Run opens the store, seeds the stock, gives back what was held in vain, and
// consumes until ctx ends. It returns an error matching [bus.ErrNoStream] or
// [bus.ErrUnavailable] when the store cannot be opened or read, and the errors
// of [consumer.Consumer.Run]. It can be called once.
func (s *Service) Run(ctx context.Context) error {
	st, err := openStore(ctx, s.bus)
	if err != nil {
		return err
	}
	if err := seed(ctx, st, s.cfg.Stock); err != nil {
		return fmt.Errorf("inventory: seed: %w", err)
	}
	if err := s.sweep(ctx, st); err != nil {
		return fmt.Errorf("inventory: sweep: %w", err)
	}
	s.use(st)
	return s.consumer.Run(ctx)
}

// Health returns nil while the service can work.
func (s *Service) Health() error {
	if _, err := s.opened(); err != nil {
		return err
	}
	return s.consumer.Health()
}

func (s *Service) use(st store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store = st
}

func (s *Service) opened() (store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil, ErrNotReady
	}
	return s.store, nil
}

// captured holds the items of a paid order, or none of them.
func (s *Service) captured(ctx context.Context, e bus.Event, p events.Captured) (consumer.Step, error) {
	if err := p.Validate(); err != nil {
		return consumer.Step{}, consumer.Permanent(err)
	}
	return s.decide(ctx, e, p.OrderID, func(ctx context.Context, st store, o Order, revision uint64) (Order, uint64, []bus.Draft, error) {
		var short string
		if o.Status == "" || o.Status == Reserving {
			o.Status, o.Items = Reserving, p.Items
			run, err := st.putOrder(ctx, o, revision)
			if err != nil {
				return o, 0, nil, err
			}
			if short, err = s.holdAll(ctx, st, o, run); err != nil {
				return o, 0, nil, err
			}
			o.Run, revision = run, run
		}
		next, drafts := onCaptured(o, short)
		return next, revision, drafts, nil
	}, func(ctx context.Context, st store, o Order) error {
		return s.each(ctx, st, p.Items, func(x Stock) (Stock, bool) { return x.release(o.ID, o.vain()) })
	})
}

// confirmed lets the items of a confirmed order leave the stock.
func (s *Service) confirmed(ctx context.Context, e bus.Event, p events.Confirmed) (consumer.Step, error) {
	return s.decide(ctx, e, p.OrderID, func(_ context.Context, _ store, o Order, revision uint64) (Order, uint64, []bus.Draft, error) {
		return onConfirmed(o), revision, nil, nil
	}, func(ctx context.Context, st store, o Order) error {
		if o.Status != Settled {
			return nil
		}
		return s.each(ctx, st, o.Items, func(x Stock) (Stock, bool) { return x.settle(o.ID, o.Run) })
	})
}

// cancelRequested gives back what is held for an order.
func (s *Service) cancelRequested(ctx context.Context, e bus.Event, p events.CancelRequested) (consumer.Step, error) {
	return s.decide(ctx, e, p.OrderID, func(_ context.Context, _ store, o Order, revision uint64) (Order, uint64, []bus.Draft, error) {
		next, drafts := onCancel(o)
		return next, revision, drafts, nil
	}, func(ctx context.Context, st store, o Order) error {
		if o.Status != Released {
			return nil
		}
		return s.each(ctx, st, o.Items, func(x Stock) (Stock, bool) { return x.release(o.ID, o.vain()) })
	})
}

// decide brings an order's document to the decision and then the stock to the
// document. Both can be repeated: a run for an event that was decided before
// returns the same drafts and repeats only the second part. A document that
// somebody else wrote meanwhile is decided again from its new state.
func (s *Service) decide(
	ctx context.Context, cause bus.Event, id string,
	decision func(ctx context.Context, st store, o Order, revision uint64) (Order, uint64, []bus.Draft, error),
	follow func(ctx context.Context, st store, o Order) error,
) (consumer.Step, error) {
	st, err := s.opened()
	if err != nil {
		return consumer.Step{}, err
	}
	if id == "" {
		return consumer.Step{}, consumer.Permanent(fmt.Errorf("%w: order_id is missing", events.ErrInvalid))
	}
	for {
		o, revision, err := st.order(ctx, id)
		if err != nil {
			return consumer.Step{}, err
		}
		drafts, again := o.Steps.Of(cause)
		if !again {
			o, revision, drafts, err = decision(ctx, st, o, revision)
			if err == nil {
				o.Steps = o.Steps.With(cause, drafts)
				_, err = st.putOrder(ctx, o, revision)
			}
			if errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
				continue
			}
			if err != nil {
				return consumer.Step{}, err
			}
		}
		if err := follow(ctx, st, o); err != nil {
			return consumer.Step{}, err
		}
		return consumer.Emit(drafts...), nil
	}
}

// holdAll sets all items aside; short names the first that is not there.
func (s *Service) holdAll(ctx context.Context, st store, o Order, run uint64) (short string, err error) {
	for _, item := range o.Items {
		held := false
		err := s.desk(item.SKU).do(ctx, st, item.SKU, func(x Stock) (next Stock, changed bool) {
			next, held = x.hold(o.ID, run, item.Quantity)
			return next, held
		})
		if err != nil || !held {
			return item.SKU, err
		}
	}
	return "", nil
}

// each changes the stock of every item.
func (s *Service) each(ctx context.Context, st store, items []events.Item, change func(Stock) (Stock, bool)) error {
	for _, item := range items {
		if err := s.desk(item.SKU).do(ctx, st, item.SKU, change); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) desk(sku string) *desk {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.desks[sku]
	if d == nil {
		d = &desk{}
		s.desks[sku] = d
	}
	return d
}
