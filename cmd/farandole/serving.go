package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/internal/natsserver"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/order"
	"github.com/farandole/farandole/services/payment"
	"github.com/farandole/farandole/services/payment/gateway"
	"github.com/farandole/farandole/topology"
)

// serving holds what one run of serve has started.
type serving struct {
	cmd        *serveCmd
	connection connection
	log        zerolog.Logger

	server  *natsserver.Server // nil without --embedded
	buses   []*bus.Bus
	parts   []host.Part
	metrics prometheus.Gatherers
	// closers are called in the reverse order.
	closers []func() error
}

func newServing(cmd *serveCmd, c connection, log zerolog.Logger) *serving {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &serving{cmd: cmd, connection: c, log: log, metrics: prometheus.Gatherers{process}}
}

func (s *serving) closeLater(f func() error) { s.closers = append(s.closers, f) }

// close closes what was started, in the reverse order.
func (s *serving) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// start starts the embedded server and the gateway, connects, and makes the services.
// The host runs them.
func (s *serving) start(ctx context.Context) error {
	if s.cmd.Store != "" {
		if err := os.MkdirAll(s.cmd.Store, 0o750); err != nil {
			return fmt.Errorf("serve: store: %w", err)
		}
	}
	if s.cmd.Embedded {
		if err := s.startServer(); err != nil {
			return err
		}
	}
	if s.cmd.runs("gateway") {
		if err := s.startGateway(); err != nil {
			return err
		}
	}
	provisioned := false
	for _, service := range []struct {
		name event.Consumer
		add  func(context.Context, *bus.Bus) error
	}{
		{order.Name, s.addOrder}, {payment.Name, s.addPayment}, {inventory.Name, s.addInventory},
	} {
		if !s.cmd.runs(string(service.name)) {
			continue
		}
		b, err := s.connect(ctx, string(service.name))
		if err != nil {
			return err
		}
		if !provisioned {
			if err := s.provision(ctx, b); err != nil {
				return err
			}
			provisioned = true
		}
		if err := service.add(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

func (s *serving) startServer() error {
	server, err := natsserver.Start(natsserver.Config{
		StoreDir: s.cmd.Store, Port: s.cmd.NATSPort, SyncAlways: s.cmd.SyncAlways, Logger: s.log,
	})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.closeLater(server.Stop)
	s.server = server
	return nil
}

// startGateway starts the demo's payment provider. It has a port of its own, which
// stays open until payment has stopped. It is also served at /gateway/, and on the
// operators' address with its books and fault switches.
func (s *serving) startGateway() error {
	p, err := gateway.Start(gateway.Config{Path: s.cmd.GatewayBooks, Logger: s.log})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.closeLater(p.Stop)
	if s.cmd.GatewayURL == "" {
		s.cmd.GatewayURL = p.URL
	}
	s.parts = append(s.parts, host.Part{
		Name:   "gateway",
		Routes: map[string]http.Handler{"/gateway/": p.Handler()},
		Admin:  map[string]http.Handler{"/gateway/": p.Admin()},
	})
	return nil
}

// connect makes the connection of one service.
func (s *serving) connect(ctx context.Context, service string) (*bus.Bus, error) {
	cfg := s.connection.config(service, s.log)
	if s.server != nil {
		cfg.InProcess, cfg.Context = s.server, ""
	}
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.closeLater(b.Close)
	s.buses = append(s.buses, b)
	return b, nil
}

// provision creates the streams and buckets that are missing. If the user may not
// create them it only checks them. If the user may not read them either it logs that,
// and the services report what is missing.
func (s *serving) provision(ctx context.Context, b *bus.Bus) error {
	wanted := topology.New(b.Names(), wantedTopology(s.cmd.Replicas))
	_, err := topology.Provision(ctx, b, wanted)
	if !errors.Is(err, bus.ErrDenied) {
		return err
	}
	plan, planErr := topology.NewPlan(ctx, b, wanted)
	switch {
	case errors.Is(planErr, bus.ErrDenied):
		s.log.Warn().Err(planErr).Msg("streams and buckets not checked")
		return nil
	case planErr != nil:
		return planErr
	case plan.Changed():
		return fmt.Errorf("serve: streams or buckets are missing or differ, and this user may not change them: run `farandole topology apply` as a user who may: %w", err)
	default:
		return plan.Err()
	}
}

// settings returns the settings of a service's consumer that the flags give.
func (s *serving) settings() consumer.Config {
	cfg := consumer.Config{
		Concurrency: s.cmd.Concurrency, Lease: s.cmd.Lease, Grace: s.cmd.Grace,
		Retry: consumer.RetryPolicy{MaxAttempts: s.cmd.MaxAttempts}, Logger: s.log,
	}
	cfg.Version, _ = buildVersion()
	if cfg.Lease > 0 { // the handler timeout must not be longer than the lease
		cfg.HandlerTimeout = min(cfg.Lease, defaultHandlerTimeout)
	}
	return cfg
}

// defaultHandlerTimeout is the default of consumer.Config.HandlerTimeout.
const defaultHandlerTimeout = 10 * time.Second

func (s *serving) addOrder(ctx context.Context, b *bus.Bus) error {
	db, err := s.openDatabase(ctx)
	if err != nil {
		return err
	}
	svc, err := order.New(b, db, order.Config{
		Deadline: s.cmd.Deadline, Consumer: s.settings(), Relay: outbox.RelayConfig{Lease: s.cmd.Lease}, Slot: s.cmd.CDC, Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.add(svc, host.Part{Name: string(order.Name), Routes: map[string]http.Handler{"/": svc.Handler()}})
	return nil
}

func (s *serving) addPayment(_ context.Context, b *bus.Bus) (err error) {
	cfg := payment.Config{GatewayURL: s.cmd.GatewayURL, Consumer: s.settings(), Logger: s.log}
	if cfg.Consumer.Ledger, err = s.cmd.Ledger.Open(b, true, s.log); err != nil {
		return err
	}
	if t := cfg.Consumer.HandlerTimeout; t > 0 { // a request to the gateway must end before the handler's timeout
		cfg.Timeout = min(t*2/3, defaultGatewayTimeout)
	}
	svc, err := payment.New(b, cfg)
	if err != nil {
		return err
	}
	s.add(svc, host.Part{Name: string(payment.Name), Admin: map[string]http.Handler{"/faults": svc.Admin()}})
	return nil
}

// defaultGatewayTimeout is the default of payment.Config.Timeout.
const defaultGatewayTimeout = 5 * time.Second

func (s *serving) addInventory(_ context.Context, b *bus.Bus) error {
	svc, err := inventory.New(b, inventory.Config{Reseed: s.cmd.Reseed, Consumer: s.settings(), Logger: s.log})
	if err != nil {
		return err
	}
	s.add(svc, host.Part{Name: string(inventory.Name), Routes: map[string]http.Handler{"/stock": svc.Handler()}})
	return nil
}

// service is implemented by all services of the demo.
type service interface {
	Run(ctx context.Context) error
	Health() error
	Metrics() prometheus.Gatherer
}

func (s *serving) add(svc service, p host.Part) {
	s.metrics = append(s.metrics, svc.Metrics())
	p.Run, p.Ready = svc.Run, svc.Health
	s.parts = append(s.parts, p)
}

// where returns the URL of the NATS server, without a password, for the "ready" line.
func (s *serving) where() string {
	if s.server != nil { // connections within the process have no URL
		return s.server.ClientURL()
	}
	if len(s.buses) == 0 {
		return "not used"
	}
	return s.buses[0].Conn().ConnectedUrlRedacted()
}
