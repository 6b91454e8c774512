package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/natsserver"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/order"
	"github.com/farandole/farandole/services/payment"
	"github.com/farandole/farandole/services/payment/gateway"
	"github.com/farandole/farandole/topology"
)

// connectTimeout bounds a service's start; the server is in this process.
const connectTimeout = time.Minute

// system is a whole system in this process: a NATS server with a temporary store, a
// database, the gateway, and the services, each with its own connections.
type system struct {
	cfg         Config
	server      *natsserver.Server
	bus         *bus.Bus        // the demo's own
	store       *store          // the order service's database
	gateway     *gateway.Server // of another company; it is not killed
	payment     *paymentService
	supervisors []*supervisor
	shops       []string // URLs of the order service, one a replica
	// died gets the error of the first service that ends by itself.
	died chan error
}

// startSystem starts everything. If it fails, nothing is left running.
func startSystem(ctx context.Context, cfg Config) (s *system, err error) {
	s = &system{cfg: cfg, died: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.server, err = natsserver.Start(natsserver.Config{Logger: cfg.Logger}); err != nil {
		return s, fmt.Errorf("demo: %w", err)
	}
	if s.bus, err = s.connect(ctx, "demo"); err != nil {
		return s, err
	}
	wanted := topology.New(s.bus.Names(), topology.Config{Buckets: []string{payment.Bucket}})
	if _, err = topology.Provision(ctx, s.bus, wanted); err != nil {
		return s, fmt.Errorf("demo: %w", err)
	}
	if s.gateway, err = gateway.Start(gateway.Config{Logger: cfg.Logger}); err != nil {
		return s, fmt.Errorf("demo: %w", err)
	}
	if s.store, err = newStore(ctx, cfg.DatabaseURL); err != nil {
		return s, err
	}
	s.payment = &paymentService{gatewayURL: s.gateway.URL, ledger: cfg.Ledger, flaky: doses[cfg.Faults].flaky > 0, log: cfg.Logger, healthy: cfg.Faults == None}
	for range doses[cfg.Faults].replicas {
		shop, err := newOrderService(s.store, cfg.Logger)
		if err != nil {
			return s, err
		}
		s.shops = append(s.shops, shop.url())
		s.supervisors = append(s.supervisors,
			s.supervisor(string(order.Name), shop.start),
			s.supervisor(string(payment.Name), s.payment.start),
			s.supervisor(string(inventory.Name), startInventory(cfg.Logger)))
	}
	for _, a := range s.supervisors {
		if err = a.startService(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *system) supervisor(name string, start func(*bus.Bus) (process, error)) *supervisor {
	return &supervisor{name: name, connect: s.connect, start: start, failed: func(err error) {
		select {
		case s.died <- err:
		default: // the first error is enough
		}
	}}
}

func (s *system) connect(ctx context.Context, name string) (*bus.Bus, error) {
	b, err := bus.Connect(ctx, bus.Config{
		InProcess: s.server, Name: "farandole " + name, Source: "/" + name, Wait: connectTimeout, Logger: s.cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("demo: %s: %w", name, err)
	}
	return b, nil
}

// stop stops what was started, in the reverse order, and waits for it.
func (s *system) stop() error {
	var errs []error
	for _, a := range s.supervisors {
		errs = append(errs, a.stop())
	}
	if s.store != nil {
		errs = append(errs, s.store.close())
	}
	if s.gateway != nil {
		errs = append(errs, s.gateway.Stop())
	}
	if s.bus != nil {
		errs = append(errs, s.bus.Close())
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop())
	}
	return errors.Join(errs...)
}
