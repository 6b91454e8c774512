package main

import (
	"context"

	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

type benchCmd struct {
	jsonFlag
	Events      int         `default:"20000" help:"How many events to handle. Default: ${default}."`
	Ledger      ledger.Kind `default:"kv" help:"Where it is kept which events are handled: kv or partition. Default: ${default}."`
	Concurrency int         `default:"${concurrency}" help:"How many handlers run at once. Default: ${default}."`
	Replicas    int         `default:"1" help:"Replicas of the streams: 1, 3 or 5. Default: ${default}."`
}

// benchReport is the JSON that bench prints.
type benchReport struct {
	Ledger      ledger.Kind `json:"ledger"`
	Concurrency int         `json:"concurrency"`
	hopbench.Result
}

// Run measures with streams and buckets of its own, under a random prefix.
func (c *benchCmd) Run(ctx context.Context, a *app) error {
	if c.Events < 1 || c.Concurrency < 1 || c.Replicas < 1 {
		return usageErrorf("bench: --events, --concurrency and --replicas want at least 1")
	}
	cfg := hopbench.Config{Events: c.Events, Replicas: c.Replicas, Prefix: hopbench.Prefix()}
	a.say("bench: %s events in streams %s-*, which are deleted at the end", terminal.Number(c.Events), cfg.Prefix)
	result, err := hopbench.Run(ctx, a.root.Connection.config("bench", a.log("warn")), cfg, hopbench.Farandole(c.Ledger, c.Concurrency))
	if err != nil {
		return err
	}
	return c.print(a, benchReport{Ledger: c.Ledger, Concurrency: c.Concurrency, Result: result})
}

func (c *benchCmd) print(a *app, r benchReport) error {
	if c.JSON {
		return a.printJSON(r)
	}
	table := terminal.NewTable("", ">", "")
	table.Row("published", terminal.Number(int(r.PublishedPerSec)), "events a second")
	table.Row("hops", terminal.Number(int(r.HopsPerSec)), "a second: consumed, deduplicated, one event emitted, acknowledged")
	table.Row("events", terminal.Number(r.Events), "each with its outgoing event stored once")
	table.Row("data", terminal.Number(r.DataBytes), "bytes an event")
	table.Row("replicas", terminal.Number(r.Replicas), "nats-server "+terminal.Printable(r.Server))
	_, err := table.WriteTo(a.styled)
	return err
}
