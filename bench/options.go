package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

var errUsage = errors.New("usage")

// options are the flags, and the sizes that follow from them.
type options struct {
	only     []string // sections
	settings []string // of the section hop
	reps     int
	json     string

	hops      int // events of a run of hop, at one replica without syncing
	publishes int
	idle      int // hops one at a time
	orders    int
	waiting   int           // events before the consumer whose memory is measured
	handled   int           // by it
	cost      string        // how long something small is run
	inserts   int           // orders committed in a run
	rows      int           // of the outbox that a relay drains
	published int           // rows until the table is measured
	steady    int           // events of a steady flow
	remembers int           // events that a ledger remembers
	settle    time.Duration // until the server has let go what it need not hold
	outage    time.Duration // of a dependency
	held      int           // events that wait for it
	quick     bool
}

var sectionNames = []string{"hop", "publish", "latency", "saga", "codec", "policy", "memory", "processes", "remembered", "outbox", "outage"}

func parse(args []string, log io.Writer) (options, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	only := flags.String("only", strings.Join(sectionNames, ","), "the sections to run, comma-separated")
	settings := flags.String("settings", strings.Join(settingNames(), ","), "the server settings of the section hop, comma-separated")
	n := flags.Int("n", 40_000, "events of a run; slower settings and other sections take a share or a multiple")
	reps := flags.Int("reps", 3, "repetitions, of which the median counts: 1 to 4")
	outage := flags.Duration("outage", 30*time.Second, "how long the dependency of the section outage is down")
	quick := flags.Bool("quick", false, "a smoke test: figures mean nothing")
	json := flags.String("json", "results.json", "where all figures go")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return options{}, err
		}
		return options{}, fmt.Errorf("%w: %w", errUsage, err)
	}
	o := options{
		only: strings.Split(*only, ","), settings: strings.Split(*settings, ","), reps: *reps, json: *json,
		hops: *n, publishes: 3 * *n, idle: 300, orders: 5000, waiting: 1_000_000, handled: 2 * *n, cost: "1s",
		inserts: *n / 8, rows: *n * 5 / 2, published: 1_000_000,
		steady: 3000, remembers: 1_000_000, settle: 20 * time.Second,
		outage: *outage, held: 2000,
	}
	o.quick = *quick
	if o.quick {
		o.reps, o.hops, o.publishes, o.idle, o.orders, o.waiting, o.handled, o.cost = 1, 1000, 2000, 30, 20, 10_000, 2000, "20ms"
		o.inserts, o.rows, o.published = 200, 2000, 3000
		o.steady, o.remembers, o.settle = 100, 2000, 100*time.Millisecond
		o.outage, o.held = time.Second, 100
	}
	return o, o.validate(flags.Args())
}

func (o options) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%w: unexpected %q", errUsage, rest[0])
	case o.reps < 1 || o.reps > 4:
		return fmt.Errorf("%w: -reps %d: want 1 to 4", errUsage, o.reps)
	case o.outage < time.Second || o.outage > 10*time.Minute:
		return fmt.Errorf("%w: -outage %v: want 1s to 10m", errUsage, o.outage)
	case o.hops < 100:
		return fmt.Errorf("%w: -n %d: want at least 100", errUsage, o.hops)
	}
	for _, name := range o.only {
		if !slices.Contains(sectionNames, name) {
			return fmt.Errorf("%w: no section %q: want some of %s", errUsage, name, strings.Join(sectionNames, ","))
		}
	}
	for _, name := range o.settings {
		if !slices.Contains(settingNames(), name) {
			return fmt.Errorf("%w: no setting %q: want some of %s", errUsage, name, strings.Join(settingNames(), ","))
		}
	}
	return nil
}
