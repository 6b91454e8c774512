package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/internal/ledger"
)

type serveCmd struct {
	Services []string `arg:"" name:"service" enum:"order,payment,inventory,gateway,all" help:"order, payment, inventory, gateway (simulates a payment provider), or all."`

	HTTP      string        `name:"http" default:"127.0.0.1:8080" env:"FARANDOLE_HTTP" placeholder:"ADDR" help:"Address for the services' HTTP, /healthz, /readyz and /metrics. Default: ${default}."`
	Admin     string        `env:"FARANDOLE_ADMIN" placeholder:"ADDR" help:"Address for operators: /readyz with reasons, fault switches (/faults, /gateway/faults), the gateway's books (/gateway/books). Default: none."`
	AllowHost []string      `name:"allow-host" env:"FARANDOLE_ALLOW_HOST" placeholder:"HOST" help:"Host names, comma-separated, that a request may name; others are refused. Default: any name; on a loopback address only localhost and loopback addresses."`
	Grace     time.Duration `default:"10s" env:"FARANDOLE_GRACE" placeholder:"DURATION" help:"How long running handlers and requests may take after a stop signal. Default: ${default}."`

	Store       string `env:"FARANDOLE_STORE" placeholder:"DIR" help:"Directory of the data: the embedded server's, and the SQLite database DIR/order.db of order."`
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Postgres database for order, instead of SQLite: postgres://USER:PASSWORD@HOST/NAME. Set it in the environment to keep the password out of the process list."`
	CDC         string `name:"cdc" env:"FARANDOLE_CDC" placeholder:"SLOT" help:"Let order's relay follow Postgres's write-ahead log through this replication slot. The slot is created if it does not exist. Postgres needs wal_level=logical."`

	Embedded   bool `group:"embedded" help:"Run a NATS server in this process, with its data in --store."`
	NATSPort   int  `group:"embedded" name:"nats-port" default:"4222" placeholder:"PORT" help:"Port of the embedded server on the loopback interface; 0 chooses a free one. Default: ${default}."`
	SyncAlways bool `group:"embedded" default:"true" negatable:"" help:"Sync each write of the embedded server to disk, so that a power failure loses nothing. On by default."`

	Concurrency  int           `env:"FARANDOLE_CONCURRENCY" placeholder:"N" help:"How many handlers of a service run at once. Default: 64."`
	Lease        time.Duration `env:"FARANDOLE_LEASE" placeholder:"DURATION" help:"How long after a crash another process takes over. Default: 15s."`
	MaxAttempts  int           `env:"FARANDOLE_MAX_ATTEMPTS" placeholder:"N" help:"How often a handler may fail before its event is dead-lettered. Default: 5."`
	Deadline     time.Duration `env:"FARANDOLE_DEADLINE" placeholder:"DURATION" help:"How long an order may take before it is cancelled. Default: 15m."`
	Ledger       ledger.Kind   `default:"kv" env:"FARANDOLE_LEDGER" help:"Where payment keeps which events it has handled: kv or partition. Default: ${default}."`
	Reseed       bool          `help:"Store inventory's initial stock again if it was lost with the event stream. Use it once, after counting the stock."`
	GatewayURL   string        `name:"gateway-url" env:"FARANDOLE_GATEWAY_URL" placeholder:"URL" help:"URL of the payment provider. Default: the gateway in this process."`
	GatewayBooks string        `name:"gateway-books" env:"FARANDOLE_GATEWAY_BOOKS" placeholder:"FILE" help:"File of the gateway's books. Default: gateway-books.jsonl in --store; without --store they are kept in memory."`
	Replicas     int           `default:"1" env:"FARANDOLE_REPLICAS" placeholder:"N" help:"Replicas of streams that are created."`
}

// lateServer is how long serve and relay wait for a NATS or database server that is
// not up yet, unless --wait says otherwise.
const lateServer = time.Minute

// Run runs the services until ctx ends. Then it stops in this order: HTTP, the
// services, their connections, the gateway, the embedded server.
func (c *serveCmd) Run(ctx context.Context, a *app) (err error) {
	if err := c.complete(); err != nil {
		return err
	}
	s := newServing(c, a.root.Connection, a.log("warn"))
	if s.connection.Wait.server == 0 {
		s.connection.Wait.server = lateServer
	}
	defer func() { err = errors.Join(err, s.close()) }()
	listener, err := s.listen(c.HTTP, "--http")
	if err != nil {
		return err
	}
	admin, err := s.listen(c.Admin, "--admin")
	if err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil { // told to stop while waiting for a server
			return nil
		}
		return err
	}
	return host.New(host.Config{
		Parts: s.parts, Listener: listener, Admin: admin, Hosts: c.AllowHost, Metrics: s.metrics, Grace: c.Grace, Logger: s.log,
		OnReady: func() {
			where := fmt.Sprintf("http://%s", listener.Addr())
			if admin != nil {
				where += fmt.Sprintf(", admin http://%s", admin.Addr())
			}
			a.say("ready: %s, NATS %s", where, s.where())
		},
	}).Run(ctx)
}

// listen opens the listener for a flag's address. It returns nil if the flag is not set.
func (s *serving) listen(address, flag string) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // the host takes nil for no listener
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve: %w: choose another %s", err, flag)
	}
	s.closeLater(func() error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) { // the host has closed it
			return err
		}
		return nil
	})
	return l, nil
}

// complete checks which flags go together, and sets those that follow from others.
func (c *serveCmd) complete() error {
	if slices.Contains(c.Services, "all") {
		c.Services = []string{"order", "payment", "inventory"}
		if c.GatewayURL == "" {
			c.Services = append(c.Services, "gateway")
		}
	}
	slices.Sort(c.Services)
	c.Services = slices.Compact(c.Services)
	switch {
	case c.Embedded && c.Store == "":
		return usageErrorf("serve: --embedded needs --store DIR: the server keeps its data there")
	case !c.Embedded && c.Store != "" && !c.runs("order"):
		return usageErrorf("serve: --store has no use here, because only the embedded server and order keep data in it: leave it out, or add --embedded or order")
	case c.runs("order") && c.Store == "" && c.DatabaseURL == "":
		return usageErrorf("serve: order needs a database: --store DIR for SQLite in DIR/%s, or --database-url URL (DATABASE_URL) for Postgres", orderFile)
	case c.runs("order") && c.DatabaseURL != "" && !database.IsURL(c.DatabaseURL): // not shown: it may hold a password
		return usageErrorf("serve: --database-url (DATABASE_URL) wants a URL that begins with postgres://")
	case c.runs("payment") && c.GatewayURL == "" && !c.runs("gateway"):
		return usageErrorf("serve: payment needs a payment provider: set --gateway-url URL, or also serve gateway")
	}
	if c.GatewayBooks == "" && c.Store != "" {
		c.GatewayBooks = filepath.Join(c.Store, "gateway-books.jsonl")
	}
	return nil
}

func (c *serveCmd) runs(service string) bool { return slices.Contains(c.Services, service) }
