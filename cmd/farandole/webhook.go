package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/webhook"
)

type webhookCmd struct {
	URL string `arg:"" name:"url" env:"FARANDOLE_WEBHOOK_URL" help:"Where to POST to, http or https; in the environment nobody sees a password or token in it."`

	Name            string            `required:"" help:"Consumer name: what retries, dead letters and the ledger go by, shared by all processes that deliver to this URL."`
	Type            []string          `required:"" sep:"," help:"Event types to deliver, or patterns of them: 'order.*' is all types of order, '*' all there are."`
	FromNow         bool              `xor:"start" help:"A name that is new leaves out the events that are stored already. Default: it delivers them all."`
	Since           time.Duration     `xor:"start" placeholder:"DURATION" help:"A name that is new begins with what was stored this long ago, as in 24h."`
	Structured      bool              `help:"Send events as JSON documents, not as data with attributes in headers."`
	Secret          []string          `env:"FARANDOLE_WEBHOOK_SECRET" sep:" " placeholder:"whsec_..." help:"Sign after Standard Webhooks; several sign together. Better in the environment, space-separated."`
	SecretFile      string            `type:"existingfile" placeholder:"FILE" help:"File with such secrets, one a line."`
	Header          map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"Further header; repeat the flag for more."`
	Timeout         time.Duration     `default:"10s" placeholder:"DURATION" help:"How long one delivery may take. Default: ${default}."`
	FollowRedirects int               `default:"0" placeholder:"N" help:"How many redirects (307, 308) to follow within the URL's host; without it, a redirect is a permanent failure."`
	Concurrency     int               `default:"16" env:"FARANDOLE_CONCURRENCY" placeholder:"N" help:"How many deliveries are made at once. Default: ${default}."`
	HTTP            string            `name:"http" placeholder:"ADDR" help:"Where to listen for /healthz, /readyz and /metrics. Default: nowhere."`
	Grace           time.Duration     `default:"10s" env:"FARANDOLE_GRACE" placeholder:"DURATION" help:"How long deliveries under way may take when stopping. Default: ${default}."`
}

// Run delivers until ctx ends.
func (c *webhookCmd) Run(ctx context.Context, a *app) error {
	log := a.log("warn")
	cfg, err := c.config(a.now(), log)
	if err != nil {
		return err
	}
	connection := a.root.Connection.config("webhook "+c.Name, log)
	if connection.Wait == 0 {
		connection.Wait = lateServer
	}
	// Checked before connecting: else a missing server would hide the mistake.
	if cfg.Types, err = c.types(connection.Names); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return usageError{err.Error()}
	}
	err = withConfig(ctx, connection, func(b *bus.Bus) error { return c.deliver(ctx, a, b, cfg) })
	if ctx.Err() != nil && errors.Is(err, bus.ErrConnect) { // stopped while it waited for the server
		return nil
	}
	return err
}

// deliver runs the webhook, and an HTTP server for health and metrics.
func (c *webhookCmd) deliver(ctx context.Context, a *app, b *bus.Bus, cfg webhook.Config) error {
	w, err := webhook.New(b, cfg)
	if err != nil {
		return usageError{err.Error()} // New does no I/O, so a setting is wrong
	}
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	h := host.Config{
		Parts:   []host.Part{{Name: c.Name, Run: w.Run, Ready: w.Health}},
		Metrics: prometheus.Gatherers{process, w.Metrics()}, Grace: c.Grace, Logger: cfg.Logger,
	}
	ready := "ready: " + c.Name
	if c.HTTP != "" {
		if h.Listener, err = net.Listen("tcp", c.HTTP); err != nil {
			return fmt.Errorf("webhook: %w: choose another --http", err)
		}
		ready += fmt.Sprintf(", http://%s", h.Listener.Addr())
	}
	h.OnReady = func() { a.say("%s, NATS %s", ready, b.Conn().ConnectedUrlRedacted()) }
	return host.New(h).Run(ctx)
}

// config makes the webhook's settings from the flags, but for the types.
func (c *webhookCmd) config(now time.Time, log zerolog.Logger) (webhook.Config, error) {
	secrets := c.Secret
	if c.SecretFile != "" {
		text, err := os.ReadFile(c.SecretFile)
		if err != nil {
			return webhook.Config{}, fmt.Errorf("webhook: %w", err)
		}
		secrets = append(secrets, strings.Fields(string(text))...)
		if len(secrets) == 0 { // deliveries would not be signed
			return webhook.Config{}, usageErrorf("webhook: no secret in %s", c.SecretFile)
		}
	}
	cfg := webhook.Config{
		URL: c.URL, Name: event.Consumer(c.Name), Structured: c.Structured, Secrets: secrets, Headers: c.Header,
		Timeout: c.Timeout, FollowRedirects: c.FollowRedirects, Logger: log,
	}
	cfg.Consumer.Start.Now = c.FromNow
	if c.Since < 0 {
		return webhook.Config{}, usageErrorf("webhook: --since %v: want a time ago, as in 24h", c.Since)
	}
	if c.Since > 0 {
		cfg.Consumer.Start.Since = now.Add(-c.Since)
	}
	cfg.Consumer.Concurrency, cfg.Consumer.Grace = c.Concurrency, c.Grace
	cfg.Consumer.Version, _ = buildVersion()
	return cfg, nil
}

// types returns the event types of --type. They may be given with the system's type
// prefix, which is removed.
func (c *webhookCmd) types(n event.Names) ([]event.Type, error) {
	types := make([]event.Type, len(c.Type))
	for i, t := range c.Type {
		if types[i] = event.Type(t); types[i].IsPattern() { // it has no prefix: the system's types are meant
			continue
		}
		var err error
		if types[i], err = n.TypeOf(t); err != nil {
			return nil, usageError{"webhook: " + err.Error()}
		}
	}
	return types, nil
}
