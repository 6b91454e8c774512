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

	Type      []event.Type  `sep:"," help:"Publish only rows of these event types, and park rows of others. Rows that a service's own consumers have written are always published."`
	Batch     int           `placeholder:"N" help:"How many rows the relay claims at once. Default: 500."`
	Lease     time.Duration `placeholder:"DURATION" help:"How long after a crash another relay takes over. Default: 30s."`
	Retention time.Duration `placeholder:"DURATION" help:"How long published rows are kept. Default: 1h."`
	CDC       string        `name:"cdc" env:"FARANDOLE_CDC" placeholder:"SLOT" help:"Follow Postgres's write-ahead log through this replication slot, instead of claiming rows. The slot is created if it does not exist. Postgres needs wal_level=logical."`
	HTTP      string        `name:"http" env:"FARANDOLE_HTTP" placeholder:"ADDR" help:"Address for /healthz, /readyz and /metrics. Default: none."`
}

// Run publishes the rows of the outbox until ctx ends.
func (c *relayCmd) Run(ctx context.Context, a *app) (err error) {
	if !c.given() {
		return usageErrorf("relay: no outbox is given: set --store PATH for SQLite, or --database-url URL (DATABASE_URL) for Postgres")
	}
	log := a.log("warn")
	to := a.root.Connection
	if to.Wait.server == 0 {
		to.Wait.server = lateServer
	}
	connection := to.config("relay", log)
	db, o, err := c.open(connection.Names)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := awaitDatabase(ctx, db, to.Wait.server); err != nil {
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
			return usageError{err.Error()} // NewRelay does no I/O: only a flag can be wrong
		}
		return c.host(ctx, a, b, relay, process, log)
	})
	if ctx.Err() != nil && errors.Is(err, bus.ErrConnect) { // told to stop while waiting
		return nil
	}
	return err
}

// host runs the relay and, with --http, its HTTP server.
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
