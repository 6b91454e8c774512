package main

import (
	"context"
	"fmt"
	"time"

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
	Faults      string      `enum:"none,some,outage,storm" default:"some" help:"Which faults to inject: none, some, outage (only a payment gateway that is down for seconds) or storm."`
}

// Run runs the demo; it fails unless the audit holds.
func (c *demoCmd) Run(ctx context.Context, a *app) error {
	if c.Orders < 1 || c.Concurrency < 1 || c.Rate < 0 {
		return usageErrorf("demo: --orders and --concurrency want at least 1, --rate at least 0")
	}
	if c.DatabaseURL != "" && !database.IsURL(c.DatabaseURL) { // not shown: it may hold a password
		return usageErrorf("demo: --database-url wants a URL that begins with postgres://")
	}
	screen := newScreen(a, c.Orders)
	report, err := demo.Run(ctx, demo.Config{
		Orders: c.Orders, Rate: c.Rate, Concurrency: c.Concurrency, Seed: c.Seed, Faults: demo.Faults(c.Faults),
		Ledger: c.Ledger, DatabaseURL: c.DatabaseURL,
		Progress: screen.progress, Notice: screen.notice, Logger: a.log("off"),
	})
	screen.close()
	if err != nil {
		return err
	}
	return c.print(a, report)
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
	table := terminal.NewTable("", ">", "")
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
	table.Row("latency p50", terminal.Number(int(r.SagaLatencyMS.P50))+" ms", "from placed to final")
	table.Row("latency p99", terminal.Number(int(r.SagaLatencyMS.P99))+" ms", "")
	table.Row("sagas", fmt.Sprintf("%.0f/s", r.SagasPerSecond), "orders that ended, until nothing was left to do")
	table.Row("took", (time.Duration(r.ElapsedMS) * time.Millisecond).Round(100*time.Millisecond).String(), "")
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	return printAudit(a, r.Audit)
}

// maxViolations is how many violations are printed for people. JSON has all.
const maxViolations = 20

func printAudit(a *app, r audit.Report) error {
	if r.OK {
		return a.printf("%s every order final, money and stock conserved, no event lost or applied twice", good().Render("audit holds:"))
	}
	if err := a.printf("%s %s violations", bad().Render("audit FAILS:"), terminal.Number(len(r.Violations))); err != nil {
		return err
	}
	for i, v := range r.Violations {
		if i == maxViolations {
			return a.printf("  … %s more", terminal.Number(len(r.Violations)-i))
		}
		if err := a.printf("  %s", terminal.Printable(v.String())); err != nil {
			return err
		}
	}
	return nil
}

func good() lipgloss.Style { return lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Green) }
func bad() lipgloss.Style  { return lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Red) }
