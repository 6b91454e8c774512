package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Config are the settings of [New].
type Config struct {
	// Stock is the initial number of pieces by SKU, 0 or more. It is stored for the SKUs
	// that have no document yet. Defaults to a million each of widget, gadget and
	// anvil, and 0 of unicorn.
	Stock map[string]int64
	// Reseed stores the initial stock again for a SKU whose document was lost with the
	// event stream. Defaults to false: the service waits, see [ErrStockLost].
	Reseed bool
	// Consumer are settings of the consumer. The service sets Name, Source, Metrics,
	// Logger and Ledger. Ledger must be nil: the service makes a dedup.Partitions, because
	// its documents have to be committed with the mark. Defaults to the consumer's
	// defaults.
	Consumer consumer.Config
	// Logger of the service and its consumer. Defaults to the bus's.
	Logger zerolog.Logger
}

func (c Config) validate() error {
	var errs []error
	for sku, n := range c.Stock {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%w: Stock of %s is %d: want 0 or more", consumer.ErrConfig, sku, n))
		}
	}
	if c.Consumer.Ledger != nil {
		errs = append(errs, fmt.Errorf("%w: Consumer.Ledger is set: leave it nil, the service makes its own", consumer.ErrConfig))
	}
	return errors.Join(errs...)
}

// Service keeps the stock.
type Service struct {
	bus      *bus.Bus
	initial  map[string]int64
	reseed   bool
	ledger   *dedup.Partitions
	store    store
	registry *consumer.Registry
	consumer *consumer.Consumer
	metrics  *prometheus.Registry
	log      zerolog.Logger
	seeded   atomic.Bool
	lost     atomic.Pointer[error] // matches ErrStockLost while the stock is lost, else nil
}

// Name is the service's consumer name.
const Name event.Consumer = "inventory"

// New makes the service. It does no I/O. The error matches [consumer.ErrConfig].
func New(b *bus.Bus, cfg Config) (*Service, error) {
	if cfg.Stock == nil {
		cfg.Stock = map[string]int64{"widget": 1_000_000, "gadget": 1_000_000, "anvil": 1_000_000, "unicorn": 0}
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	cfg.Logger = b.LoggerOr(cfg.Logger)
	s := &Service{
		bus: b, initial: cfg.Stock, reseed: cfg.Reseed, log: cfg.Logger,
		registry: consumer.NewRegistry(), metrics: prometheus.NewRegistry(),
	}
	consumer.Handle(s.registry, events.PaymentCaptured, s.captured)
	consumer.Handle(s.registry, events.OrderConfirmed, s.confirmed)
	consumer.Handle(s.registry, events.OrderCancelRequested, s.cancelRequested)

	var err error
	if s.ledger, err = dedup.NewPartitions(b, dedup.PartitionsConfig{Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	if s.store, err = openStore(b, s.ledger); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	cfg.Consumer.Name, cfg.Consumer.Source = Name, "/"+string(Name)
	cfg.Consumer.Ledger, cfg.Consumer.Metrics, cfg.Consumer.Logger = s.ledger, s.metrics, cfg.Logger
	if s.consumer, err = consumer.New(b, s.registry, cfg.Consumer); err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	return s, nil
}

// Registry returns the service's handlers.
func (s *Service) Registry() *consumer.Registry { return s.registry }

// Stats returns the consumer's counts.
func (s *Service) Stats() consumer.Stats { return s.consumer.Stats() }

// Run stores the initial stock, then consumes until ctx ends. If the stock is lost it
// does not begin to consume until somebody brings it back; [Service.Health] says so.
// It returns an error matching [bus.ErrNoStream] or [bus.ErrUnavailable] if the stock
// cannot be stored for as long as the bus waits (bus.Config.Wait), and the errors of
// [consumer.Consumer.Run]. It can be called once.
func (s *Service) Run(ctx context.Context) error {
	err := s.begin(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	s.seeded.Store(true)
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { s.watch(watching) })
	defer watcher.Wait()
	defer stop()
	return s.consumer.Run(ctx)
}

// Health returns nil while the service can handle events. Else the error is
// [ErrNotReady], or matches [ErrStockLost], or is that of [consumer.Consumer.Health].
func (s *Service) Health() error {
	if lost := s.lost.Load(); lost != nil {
		return *lost
	}
	if !s.seeded.Load() {
		return ErrNotReady
	}
	return s.consumer.Health()
}
