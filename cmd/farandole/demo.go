package main

import (
	"context"
	"errors"
	"fmt"

	"charm.land/lipgloss/v2"

	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/demo"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/services/audit"
)

type demoCmd struct {
	jsonFlag
	Orders      int         `default:"200" help:"How many orders to place."`
	Rate        float64     `default:"0" placeholder:"N" help:"Orders a second; 0 is as fast as possible."`
	Concurrency int         `default:"16" help:"How many orders to place at once."`
	Seed        uint64      `default:"1" help:"Seed of customers, items and faults; the same seed has the same outcome."`
	Ledger      ledger.Kind `default:"kv" help:"Where payment remembers what it has handled: kv or partition. Inventory always has the partition ledger, order its database."`
	DatabaseURL string      `name:"database-url" placeholder:"URL" help:"Postgres database for order, which gets a schema of its own there that is dropped at the end. Default: SQLite in a temporary directory; DATABASE_URL is ignored."`
	KeepOpen    bool        `name:"keep-open" help:"Leave the system running at the end, until Ctrl-C, and say how to play with it."`
	Faults      string      `enum:"none,some,outage,storm" default:"some" help:"Which faults to inject: none, some, outage (only a payment gateway that is down for seconds) or storm."`
}

// Run runs the demo; it fails unless the audit holds.
func (c *demoCmd) Run(ctx context.Context, a *app) error {
	cfg, err := c.config(a)
	if err != nil {
		return err
	}
	screen := newScreen(a, cfg.Story())
	cfg.Progress, cfg.Notice = screen.progress, screen.notice
	var printed error
	if c.KeepOpen {
		cfg.KeepOpen = func(r demo.Report, at demo.Address) {
			screen.close(true)
			if printed = c.print(a, r); printed == nil {
				a.say("%s", playground(at))
				<-ctx.Done()
			}
		}
	}
	report, err := demo.Run(ctx, cfg)
	screen.close(err == nil)
	switch {
	case printed != nil:
		return errors.Join(printed, err)
	case ctx.Err() != nil:
		a.say("interrupted: the demo has stopped, and left nothing behind")
		return exitError{errSilent, exitInterrupted}
	case err != nil:
		return err
	}
	err = c.print(a, report)
	if !c.JSON {
		a.say("%s", terminal.Wrap(c.next(err == nil), columnsOf(a.err), 0))
	}
	return err
}

// config returns the settings of the run.
func (c *demoCmd) config(a *app) (demo.Config, error) {
	switch {
	case c.Orders < 1 || c.Concurrency < 1 || c.Rate < 0:
		return demo.Config{}, usageErrorf("demo: --orders and --concurrency want at least 1, --rate at least 0")
	case c.DatabaseURL != "" && !database.IsURL(c.DatabaseURL): // not shown: it may hold a password
		return demo.Config{}, usageErrorf("demo: --database-url wants a URL that begins with postgres://")
	case c.Faults == string(demo.Outage) && c.Orders < demo.MinOutage:
		return demo.Config{}, usageErrorf("demo: --faults outage wants --orders %d or more: with fewer calls the gateway's breaker does not open", demo.MinOutage)
	}
	return demo.Config{
		Orders: c.Orders, Rate: c.Rate, Concurrency: c.Concurrency, Seed: c.Seed, Faults: demo.Faults(c.Faults),
		Ledger: c.Ledger, DatabaseURL: c.DatabaseURL, Logger: a.log("off"),
	}, nil
}

// next says what to try after a run.
func (c *demoCmd) next(held bool) string {
	if !held {
		return "Next: the same again, with what the services log: --log-level info."
	}
	return map[string]string{
		"none":   "Next: `farandole demo` injects faults.",
		"some":   "Next: `farandole demo --faults outage` has the gateway be down, `--faults storm` is rougher, and `--keep-open` leaves the system running.",
		"outage": "Next: `farandole demo --faults outage --log-level info` shows the log of it, `--faults storm` is rougher, and `--keep-open` leaves the system running.",
		"storm":  "Next: another `--seed`, `--ledger partition`, or `--keep-open`, which leaves the system running.",
	}[c.Faults]
}

// playground says how to play with a system that stays up.
func playground(at demo.Address) string {
	return `The system stays up until Ctrl-C. In another terminal:

  export NATS_URL=` + at.NATS + `
  farandole tail --type order.confirmed.v1 --from-start --limit 5
  curl ` + at.Shop + `/orders -H 'Idempotency-Key: mine' \
    -H 'Content-Type: application/json' -d '{"customer_id":"ada",
    "currency":"EUR","items":[{"sku":"widget","quantity":2}]}'
  farandole publish order.placed.v1 nobodys-order --data '{}'
  farandole dlq list
  farandole consumer list`
}

// print shows the report. It returns errSilent, exit code 1, if the audit has failed.
func (c *demoCmd) print(a *app, r demo.Report) (err error) {
	if c.JSON {
		err = a.printJSON(r)
	} else {
		err = printDemo(a, r)
	}
	if err == nil && !r.Audit.OK {
		return errSilent
	}
	return err
}

func printDemo(a *app, r demo.Report) error {
	table := a.table("", ">", "")
	row := func(name string, n int, what string) { table.Row(name, terminal.Number(n), what) }
	row("orders", r.Orders, "")
	row("  confirmed", r.Confirmed, "")
	row("  cancelled", r.Cancelled, "declined, out of stock, or by the customer")
	row("  unfinished", r.Unfinished, "")
	row("dead-lettered", r.DeadLettered, "")
	row("  replayed", r.Replayed, "once the fault was gone")
	row("  kept", r.Kept, "can never be handled; left for people to look at")
	row("duplicates injected", r.DuplicatesInjected, "")
	row("  suppressed", r.DuplicatesSuppressed, "")
	row("crashes injected", r.CrashesInjected, "")
	row("events", r.Events, "in the stream")
	if o := r.Audit.Outages; o.Opened > 0 || r.Injected.OutageMS > 0 {
		row("breaker opened", o.Opened, "of the gateway, for all processes at once")
		table.Row("  not closed", milliseconds(o.NotClosedMS), fmt.Sprintf("%s and %s because of that",
			terminal.Count(o.Attempts, "attempt", "attempts"), terminal.Count(o.DeadLetters, "dead letter", "dead letters")))
	}
	table.Row("latency p50", milliseconds(r.SagaLatencyMS.P50), "from placed to final")
	table.Row("latency p99", milliseconds(r.SagaLatencyMS.P99), "")
	if i := r.Injected; i.OutageMS > 0 {
		table.Row("  injected", milliseconds(i.OutageMS), "the gateway was down")
	}
	if i := r.Injected; i.SlowOrders > 0 {
		table.Row("  injected", milliseconds(i.SlowMS), "the gateway's answer to "+terminal.Count(i.SlowOrders, "order", "orders"))
	}
	if i := r.Injected; i.Flaky > 0 {
		table.Row("  injected", fmt.Sprintf("%.0f %%", 100*i.Flaky), "of the calls to the gateway failed")
	}
	table.Row("sagas", fmt.Sprintf("%.0f/s", r.SagasPerSecond), "orders that ended, until nothing was left to do")
	table.Row("took", fmt.Sprintf("%.1f s", float64(r.ElapsedMS)/1000), "")
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	return printAudit(a, r.Audit)
}

func milliseconds(n int64) string { return terminal.Number(n) + " ms" }

// maxViolations is how many violations are printed for people. JSON has all.
const maxViolations = 20

func printAudit(a *app, r audit.Report) error {
	if r.OK {
		return a.printf("%s", a.wrap(good().Render("audit holds:")+" every order final, money and stock conserved, no event lost or applied twice", 2))
	}
	if err := a.printf("%s %s", bad().Render("audit FAILS:"), terminal.Count(len(r.Violations), "violation", "violations")); err != nil {
		return err
	}
	for i, v := range r.Violations {
		if i == maxViolations {
			return a.printf("  … %s more", terminal.Number(len(r.Violations)-i))
		}
		if err := a.printf("%s", a.wrap("  "+terminal.Printable(v.String()), 4)); err != nil {
			return err
		}
	}
	return nil
}

func good() lipgloss.Style { return lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Green) }
func bad() lipgloss.Style  { return lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Red) }
