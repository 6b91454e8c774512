package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/outbox"
)

type relayCmd struct {
	outboxFlags

	Type      []event.Type  `sep:"," help:"Publish rows of these event types only, and park those of others. Rows of a service's own consumers are published in any case."`
	Batch     int           `placeholder:"N" help:"How many rows a claim takes. Default: 500."`
	Lease     time.Duration `placeholder:"DURATION" help:"How soon another relay takes over after a crash. Default: 30s."`
	Retention time.Duration `placeholder:"DURATION" help:"How long published rows are kept. Default: 1h."`
	CDC       string        `name:"cdc" env:"FARANDOLE_CDC" placeholder:"SLOT" help:"Follow Postgres's write-ahead log through this replication slot, which is made if need be (wal_level=logical), instead of claiming rows."`
	HTTP      string        `name:"http" env:"FARANDOLE_HTTP" placeholder:"ADDR" help:"Where to listen for /healthz, /readyz and /metrics. Default: nowhere."`
}

// Run publishes what others write into the outbox, until ctx ends.
func (c *relayCmd) Run(ctx context.Context, a *app) (err error) {
	if !c.given() {
		return usageErrorf("relay: no outbox: --store PATH, or --database-url URL (DATABASE_URL)")
	}
	log := a.log("warn")
	to := a.root.Connection
	if to.Wait == 0 {
		to.Wait = lateServer
	}
	connection := to.config("relay", log)
	db, o, err := c.open(connection.Names)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := awaitDatabase(ctx, db, to.Wait); err != nil {
		if ctx.Err() != nil { // told to stop while waiting
			return nil
		}
		return fmt.Errorf("relay: database: %w", err)
	}
	if err := o.Migrate(ctx); err != nil {
		return err
	}
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cfg := outbox.RelayConfig{
		Types: c.Type, Batch: c.Batch, Lease: c.Lease, Retention: c.Retention, Metrics: process, Logger: log,
	}
	if c.CDC != "" {
		if cfg.Feed, err = db.Feed(o, c.CDC, process, log); err != nil {
			return usageErrorf("relay: --cdc: %v", err)
		}
	}
	err = withConfig(ctx, connection, func(b *bus.Bus) error {
		relay, err := outbox.NewRelay(o, b, cfg)
		if err != nil {
			return usageError{err.Error()} // it does no I/O: settings are all that can be wrong
		}
		return c.host(ctx, a, b, relay, process, log)
	})
	if ctx.Err() != nil && errors.Is(err, bus.ErrConnect) { // told to stop while waiting
		return nil
	}
	return err
}

// host runs the relay, and HTTP for those who watch it.
func (c *relayCmd) host(ctx context.Context, a *app, b *bus.Bus, relay *outbox.Relay, metrics prometheus.Gatherer, log zerolog.Logger) error {
	h := host.Config{Parts: []host.Part{{Name: "relay", Run: relay.Run, Ready: relay.Health}}, Metrics: metrics, Logger: log}
	ready := "ready: relay"
	if c.HTTP != "" {
		var err error
		if h.Listener, err = net.Listen("tcp", c.HTTP); err != nil {
			return fmt.Errorf("relay: %w: choose another --http", err)
		}
		ready += fmt.Sprintf(", http://%s", h.Listener.Addr())
	}
	h.OnReady = func() { a.say("%s, NATS %s", ready, b.Conn().ConnectedUrlRedacted()) }
	return host.New(h).Run(ctx)
}
