package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/internal/status"
)

type metricsCmd struct {
	HTTP      string   `name:"http" default:"127.0.0.1:9464" env:"FARANDOLE_METRICS_HTTP" placeholder:"ADDR" help:"Where to listen for /metrics, /healthz and /readyz. Default: ${default}."`
	AllowHost []string `name:"allow-host" env:"FARANDOLE_ALLOW_HOST" placeholder:"HOST" help:"Host names, comma-separated, that a request may name; others are refused. Default: any name; on a loopback address only localhost and loopback addresses."`
}

// Run answers until ctx ends.
func (c *metricsCmd) Run(ctx context.Context, a *app) error {
	log := a.log("warn")
	connection := a.root.Connection.config("metrics", log)
	if connection.Wait == 0 {
		connection.Wait = lateServer
	}
	err := withConfig(ctx, connection, func(b *bus.Bus) error {
		l, err := net.Listen("tcp", c.HTTP)
		if err != nil {
			return fmt.Errorf("metrics: %w: choose another --http", err)
		}
		system, registry := status.NewCollector(b), prometheus.NewRegistry()
		registry.MustRegister(system, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		return host.New(host.Config{
			Parts: []host.Part{{
				Name:  "metrics",
				Run:   func(ctx context.Context) error { <-ctx.Done(); return nil },
				Ready: system.Health,
			}},
			Listener: l, Hosts: c.AllowHost, Metrics: registry, Logger: log,
			OnReady: func() { a.say("ready: http://%s/metrics, NATS %s", l.Addr(), b.Conn().ConnectedUrlRedacted()) },
		}).Run(ctx)
	})
	if ctx.Err() != nil && errors.Is(err, bus.ErrConnect) { // stopped while it waited for the server
		return nil
	}
	return err
}
