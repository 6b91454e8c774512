package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
)

// Webhook delivers events to one receiver. Make it with [New].
type Webhook struct {
	consumer *consumer.Consumer
	encoder  *encoder
	client   *client
	metrics  *metrics
	gatherer *prometheus.Registry
	receiver receiver
	// longest bounds a Retry-After.
	longest time.Duration
}

// New checks the configuration and does no I/O. The error matches [ErrConfig],
// consumer.ErrConfig, event.ErrInvalidConsumer or event.ErrInvalidType.
func New(b *bus.Bus, cfg Config) (*Webhook, error) {
	cfg = cfg.withDefaults()
	cfg.Logger = b.LoggerOr(cfg.Logger)
	cfg.Consumer.Logger = cfg.Logger
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	target, err := url.Parse(cfg.URL)
	if err != nil { // validate has seen to it
		return nil, ErrConfig
	}
	w := &Webhook{gatherer: prometheus.NewRegistry(), longest: cfg.Consumer.Retry.MaxDelay}
	w.receiver.log = cfg.Logger.With().Str("consumer", string(cfg.Name)).Logger()
	if w.encoder, err = newEncoder(cfg, target.User); err != nil {
		return nil, err
	}
	target.User = nil // it is a header now
	guard, err := newGuard(cfg, w.gatherer)
	if err != nil {
		return nil, err
	}
	w.client = newClient(target, guard, cfg)
	if w.metrics, err = newMetrics(w.gatherer, cfg.Name); err != nil {
		return nil, fmt.Errorf("webhook: %s: %w", cfg.Name, err)
	}
	registry := consumer.NewRegistry()
	for _, t := range cfg.Types {
		consumer.HandleEvent(registry, t, w.deliver)
	}
	cfg.Consumer.Metrics = w.gatherer
	if w.consumer, err = consumer.New(b, registry, cfg.Consumer); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return w, nil
}

const (
	// failureRate is how large a part of the requests has to fail until the breaker opens.
	failureRate = 0.5
	// mostCalls bounds how many requests it takes to judge.
	mostCalls = 40
	// timeouts is over how many timeouts the breaker looks back, so that a receiver which
	// never answers gets enough requests.
	timeouts = 3
)

// newGuard returns the policies of requests to the receiver: a breaker. Retries are the
// consumer's, and the timeout is that of a delivery, which may be several requests.
//
// It opens at a rate, and not after failures in a row: one event that the receiver
// always answers with a 500 is no outage. With all its attempts it makes less than half
// of the requests that it takes to judge.
func newGuard(cfg Config, r prometheus.Registerer) (*resilience.Guard, error) {
	name := string(cfg.Name)
	breaker, err := resilience.NewBreaker(resilience.BreakerConfig{
		Name: name, FailureRate: failureRate, Window: timeouts * cfg.Timeout, MinCalls: min(2*cfg.Consumer.Retry.MaxAttempts+1, mostCalls),
		ProbeTimeout: 2 * cfg.Timeout, Metrics: r, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	guard, err := resilience.New(resilience.Config{Name: name, Breaker: breaker, Metrics: r})
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return guard, nil
}

// Run delivers until ctx ends, like consumer.Run, whose errors it returns. A
// delivery that is cut off at the end is made again by whoever runs next. It
// can be called once.
func (w *Webhook) Run(ctx context.Context) error {
	defer w.client.base.CloseIdleConnections()
	return w.consumer.Run(ctx)
}

// Health returns nil while events can be fetched and their ends recorded, else
// an error matching consumer.ErrUnhealthy. The receiver is not part of it:
// restarting the webhook does not mend the receiver.
func (w *Webhook) Health() error { return w.consumer.Health() }

// Stats returns the consumer's counts.
func (w *Webhook) Stats() consumer.Stats { return w.consumer.Stats() }

// Metrics are the webhook's and its consumer's metrics.
func (w *Webhook) Metrics() prometheus.Gatherer { return w.gatherer }

// deliver handles one event.
func (w *Webhook) deliver(ctx context.Context, e event.Event) (consumer.Step, error) {
	start := time.Now()
	m, err := w.encoder.encode(e, start)
	if err != nil {
		return consumer.Step{}, consumer.Permanent(err)
	}
	a, err := w.client.post(ctx, m)
	w.receiver.note(ctx, a, err)
	if !errors.Is(err, resilience.ErrOpen) { // else nothing was sent
		w.metrics.delivery(a.status, time.Since(start))
	}
	if err != nil {
		return consumer.Step{}, err
	}
	return consumer.Step{}, faultOf(a, time.Now(), w.longest)
}
