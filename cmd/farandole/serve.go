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
)

type serveCmd struct {
	Services []string `arg:"" name:"service" enum:"order,payment,inventory,gateway,all" help:"order, payment, inventory, gateway (stands in for a payment provider), or all."`

	HTTP      string        `name:"http" default:"127.0.0.1:8080" env:"FARANDOLE_HTTP" placeholder:"ADDR" help:"Where to listen for the services' HTTP, /healthz, /readyz and /metrics. Default: ${default}."`
	Admin     string        `env:"FARANDOLE_ADMIN" placeholder:"ADDR" help:"Where to listen for operators: /readyz with its reasons, fault switches (/faults, /gateway/faults), the gateway's books (/gateway/books). Default: nowhere."`
	AllowHost []string      `name:"allow-host" env:"FARANDOLE_ALLOW_HOST" placeholder:"HOST" help:"A name of this process in URLs; requests under others are refused. Default: any, but on a loopback address localhost and loopback addresses alone."`
	Grace     time.Duration `default:"10s" env:"FARANDOLE_GRACE" placeholder:"DURATION" help:"How long work under way may take when stopping. Default: ${default}."`

	Store       string `env:"FARANDOLE_STORE" placeholder:"DIR" help:"Where data is kept: the embedded server's, and order's in the SQLite database DIR/order.db."`
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Postgres database for order, instead of SQLite in the store: postgres://USER:PASSWORD@HOST/NAME; better in the environment."`
	CDC         string `name:"cdc" env:"FARANDOLE_CDC" placeholder:"SLOT" help:"Let order's relay follow Postgres's write-ahead log through this replication slot, which is made if need be (wal_level=logical)."`

	Embedded   bool `group:"embedded" help:"Bring a NATS server along, in this process, with its data in --store."`
	NATSPort   int  `group:"embedded" name:"nats-port" default:"4222" placeholder:"PORT" help:"Its port on the loopback interface, 0 for a free one. Default: ${default}."`
	SyncAlways bool `group:"embedded" default:"true" negatable:"" help:"Sync each write to disk, which makes it safe against power loss and not only against a crash. On by default."`

	Concurrency  int           `env:"FARANDOLE_CONCURRENCY" placeholder:"N" help:"How many handlers of a service run at once."`
	Lease        time.Duration `env:"FARANDOLE_LEASE" placeholder:"DURATION" help:"How soon others take over after a crash."`
	MaxAttempts  int           `env:"FARANDOLE_MAX_ATTEMPTS" placeholder:"N" help:"Runs of a handler before its event is dead-lettered."`
	Deadline     time.Duration `env:"FARANDOLE_DEADLINE" placeholder:"DURATION" help:"How long an order may take before it is cancelled. Default: 15m."`
	Ledger       string        `enum:"kv,stream" default:"kv" env:"FARANDOLE_LEDGER" help:"Where payment remembers what it has handled: kv or stream. Default: ${default}."`
	Reseed       bool          `help:"Write inventory's initial stock anew if it was lost with the event stream: once, after counting."`
	GatewayURL   string        `name:"gateway-url" env:"FARANDOLE_GATEWAY_URL" placeholder:"URL" help:"The payment provider. Default: the gateway in this process."`
	GatewayBooks string        `name:"gateway-books" env:"FARANDOLE_GATEWAY_BOOKS" placeholder:"FILE" help:"The gateway's books. Default: in the store, else in memory."`
	Replicas     int           `default:"1" env:"FARANDOLE_REPLICAS" placeholder:"N" help:"Replicas of streams that are created."`
}

// lateServer is how long serve waits for a NATS server, or a database server,
// that is not up yet.
const lateServer = time.Minute

// Run runs the services until ctx ends, and stops in this order: HTTP, the
// services, their connections, the gateway, the embedded server.
func (c *serveCmd) Run(ctx context.Context, a *app) (err error) {
	if err := c.complete(); err != nil {
		return err
	}
	s := newServing(c, a.root.Connection, a.log("warn"))
	if s.connection.Wait == 0 {
		s.connection.Wait = lateServer
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
		if ctx.Err() != nil { // told to stop while still waiting for the server
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

// listen opens the listener of a flag; none if the flag is not set.
func (s *serving) listen(address, flag string) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // the host takes nil for none
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve: %w: choose another %s", err, flag)
	}
	s.closeLater(func() error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) { // the host closes it, if it ever runs
			return err
		}
		return nil
	})
	return l, nil
}

// complete checks the flags together and fills in what follows from them.
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
		return usageErrorf("serve: --embedded needs --store DIR to keep the data in")
	case !c.Embedded && c.Store != "" && !c.runs("order"):
		return usageErrorf("serve: --store is the embedded server's and order's: neither is served")
	case c.runs("order") && c.Store == "" && c.DatabaseURL == "":
		return usageErrorf("serve: order needs a database: --store DIR for SQLite in DIR/%s, or --database-url URL (DATABASE_URL) for Postgres", orderFile)
	case c.runs("order") && c.DatabaseURL != "" && !database.IsURL(c.DatabaseURL): // not shown: it may hold a password
		return usageErrorf("serve: --database-url (DATABASE_URL) wants a URL that begins with postgres://")
	case c.runs("payment") && c.GatewayURL == "" && !c.runs("gateway"):
		return usageErrorf("serve: payment needs --gateway-url, or gateway in the same process")
	}
	if c.GatewayBooks == "" && c.Store != "" {
		c.GatewayBooks = filepath.Join(c.Store, "gateway-books.jsonl")
	}
	return nil
}

func (c *serveCmd) runs(service string) bool { return slices.Contains(c.Services, service) }
