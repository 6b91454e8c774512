package payment

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/resilience/fleet"
	"github.com/farandole/farandole/services/events"
)

// Name is the service's consumer name.
const Name event.Consumer = "payment"

// Bucket is the short name of the service's KV bucket.
const Bucket = "payments"

// Config holds the settings of the service. Only GatewayURL is required.
type Config struct {
	// GatewayURL is the gateway's base URL, http or https. Required.
	GatewayURL string
	// Timeout of one call to the gateway. It is shorter than the consumer's
	// HandlerTimeout, so that the error of a slow gateway names the gateway.
	// Defaults to 5 s.
	Timeout time.Duration
	// Breaker holds the settings of the gateway's breaker. The service sets its name,
	// metrics and logger. Defaults to opening for 1 s when 15 of the last 20 calls
	// have failed, and else to the breaker's defaults.
	Breaker resilience.BreakerConfig
	// Consumer holds the settings of the consumer. The service sets its name,
	// source, metrics and logger. Defaults to the consumer's defaults.
	Consumer consumer.Config
	// NoPoison starts the service with the fault "poison" off. Defaults to false:
	// the fault is on.
	NoPoison bool
	// Logger of the consumer. Defaults to the bus's.
	Logger zerolog.Logger
}

const (
	defaultTimeout        = 5 * time.Second
	defaultHandlerTimeout = 10 * time.Second // the consumer's
	defaultConcurrency    = 64               // the consumer's

	// One payment for which the gateway always fails is not an outage: its retries alone
	// are never so many calls. A gateway that fails at every second or third call is not
	// down either: retries get through, and probes, which must all succeed, seldom do.
	defaultFailureRate = 0.75
	defaultWindowCalls = 20
	defaultOpenFor     = time.Second
)

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Consumer.HandlerTimeout == 0 {
		c.Consumer.HandlerTimeout = defaultHandlerTimeout
	}
	if c.Consumer.Concurrency == 0 {
		c.Consumer.Concurrency = defaultConcurrency
	}
	if c.Breaker.Failures == 0 && c.Breaker.FailureRate == 0 {
		c.Breaker.FailureRate, c.Breaker.WindowCalls, c.Breaker.MinCalls = defaultFailureRate, defaultWindowCalls, defaultWindowCalls
	}
	if c.Breaker.OpenFor == 0 {
		c.Breaker.OpenFor = defaultOpenFor
	}
	if c.Breaker.ProbeTimeout == 0 && c.Timeout > 0 {
		c.Breaker.ProbeTimeout = 2 * c.Timeout
	}
	c.GatewayURL = strings.TrimSuffix(c.GatewayURL, "/")
	return c
}

func (c Config) validate() error {
	var errs []error
	if u, err := url.Parse(c.GatewayURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		errs = append(errs, fmt.Errorf("%w: GatewayURL %q: want http://host or https://host", ErrConfig, c.GatewayURL))
	}
	if c.Timeout < 0 || c.Timeout >= c.Consumer.HandlerTimeout {
		errs = append(errs, fmt.Errorf("%w: Timeout %v: want more than 0 and less than HandlerTimeout %v", ErrConfig, c.Timeout, c.Consumer.HandlerTimeout))
	}
	return errors.Join(errs...)
}

// store keeps the records. It is a *bus.Bucket, and a map in tests.
type store interface {
	Get(ctx context.Context, key event.Key) (r Record, revision uint64, err error)
	Put(ctx context.Context, key event.Key, r Record, revision uint64) (uint64, error)
}

var _ store = (*bus.Bucket[Record])(nil)

// Service charges and refunds. Make it with New.
type Service struct {
	bus      *bus.Bus
	registry *consumer.Registry
	consumer *consumer.Consumer
	gateway  *client
	breaker  *resilience.Breaker // of the gateway
	fleet    *fleet.Breaker      // the same, shared by all processes of the service
	metrics  *prometheus.Registry
	poison   atomic.Bool

	mu    sync.Mutex
	store store // nil until Run has opened it
}

// New checks the configuration and does no I/O. The error matches [ErrConfig]
// or consumer.ErrConfig.
func New(b *bus.Bus, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	cfg.Logger = b.LoggerOr(cfg.Logger)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Service{bus: b, registry: consumer.NewRegistry(), metrics: prometheus.NewRegistry()}
	s.poison.Store(!cfg.NoPoison)
	m, err := newMetrics(s.metrics)
	if err != nil {
		return nil, fmt.Errorf("payment: %w", err)
	}
	guard, err := s.guard(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s.gateway = newClient(cfg.GatewayURL, guard, cfg.Consumer.Concurrency, m)
	consumer.Handle(s.registry, events.OrderPlaced, s.placed)
	consumer.Handle(s.registry, events.InventoryRejected, func(ctx context.Context, e event.Event, p events.Rejected) (consumer.Step, error) {
		return s.compensate(ctx, e, p.OrderID, p.Reason)
	})
	consumer.Handle(s.registry, events.InventoryReleased, func(ctx context.Context, e event.Event, p events.Released) (consumer.Step, error) {
		return s.compensate(ctx, e, p.OrderID, "order cancelled")
	})
	cfg.Consumer.Name, cfg.Consumer.Source = Name, "/"+string(Name)
	cfg.Consumer.Metrics, cfg.Consumer.Logger = s.metrics, cfg.Logger
	if s.consumer, err = consumer.New(b, s.registry, cfg.Consumer); err != nil {
		return nil, fmt.Errorf("payment: %w", err)
	}
	if s.fleet, err = fleet.New(b, fleet.Config{Consumer: Name, Breaker: s.breaker, Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("payment: %w", err)
	}
	return s, nil
}

// guard makes the breaker and returns the policies of calls to the gateway. There are no retries among
// them: the consumer retries the event.
func (s *Service) guard(cfg Config) (*resilience.Guard, error) {
	cfg.Breaker.Name, cfg.Breaker.Metrics, cfg.Breaker.Logger = "gateway", s.metrics, cfg.Logger
	var err error
	if s.breaker, err = resilience.NewBreaker(cfg.Breaker); err != nil {
		return nil, err
	}
	return resilience.New(resilience.Config{Name: "gateway", Breaker: s.breaker, Timeout: cfg.Timeout, Metrics: s.metrics})
}

// Registry returns the service's handlers.
func (s *Service) Registry() *consumer.Registry { return s.registry }

// Stats returns the consumer's counts.
func (s *Service) Stats() consumer.Stats { return s.consumer.Stats() }

// Metrics are the service's metrics.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

// SetPoison switches the fault "poison" on or off: while it is on, the handler
// panics for customers whose id begins with "poison-".
func (s *Service) SetPoison(on bool) { s.poison.Store(on) }

// Run opens the bucket and consumes until ctx ends, like consumer.Run, whose
// errors it returns. An error matching bus.ErrNoStream means that the bucket
// is not provisioned. It can be called once.
func (s *Service) Run(ctx context.Context) error {
	defer s.gateway.http.CloseIdleConnections()
	bucket, err := bus.OpenBucket[Record](ctx, s.bus, Bucket)
	switch {
	case ctx.Err() != nil:
		return nil // stopped before it began
	case err != nil:
		return fmt.Errorf("payment: %w", err)
	}
	s.use(bucket)
	sharing, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.fleet.Run(sharing, s.consumer) })
	return s.consumer.Run(ctx)
}

// Health returns nil while the service can work, else an error matching
// [ErrNotReady] or consumer.ErrUnhealthy. The gateway is not part of it:
// restarting payment does not mend the gateway.
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
