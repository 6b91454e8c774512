package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/colorprofile"

	"github.com/farandole/farandole/internal/demo"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/services/audit"
)

// All that a demo can show, of runs that never were.
func TestDemoScreensFitTheTerminal(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{80, 120} {
		var out bytes.Buffer
		a := newApp(&cli{}, streams{in: strings.NewReader(""), out: &out, err: &out})
		a.columns, a.styled = columns, &colorprofile.Writer{Forward: &out, Profile: colorprofile.NoTTY}
		for _, faults := range []demo.Faults{demo.None, demo.Some, demo.Outage, demo.Storm} {
			stormyRun(t, a, faults)
		}
		a.say("\n# one order, and an audit that fails\n")
		a.say("%s", a.wrap(demo.Config{Orders: 1, Seed: 18, Faults: demo.None}.Story(), 0))
		a.say("%s", barLine(demo.Progress{Phase: "auditing", Steps: 4, Done: 3, Orders: 1, Placed: 1, Confirmed: 1, Crashes: 1, DeadLetters: 1, Duplicates: 1}, columns))
		must(t, printAudit(a, audit.Report{Violations: []audit.Violation{{
			Invariant: audit.Money, Order: "ord-7f3c", Expected: "25,000 EUR kept for the confirmed order", Found: "2: ch-1 of 25000 EUR, ch-2 of 25000 EUR",
		}}}))
		a.say("%s", a.wrap((&demoCmd{}).next(false), 0))
		a.say("\n# a system that stays up\n\n%s", playground(demo.Address{NATS: "nats://127.0.0.1:42123", Shop: "http://127.0.0.1:38123"}))
		golden(t, fmt.Sprintf("demo-%d.txt", columns), out.String(), columns)
	}
}

// stormyRun shows one run from its first line to its last one.
func stormyRun(t *testing.T, a *app, faults demo.Faults) {
	t.Helper()
	a.say("\n# --faults %s\n", faults)
	a.say("%s", a.wrap(demo.Config{Orders: 20_000, Seed: 7, Faults: faults}.Story(), 0))
	p := demo.Progress{Phase: "placing", Steps: 40_018, Orders: 20_000}
	show := func(done, confirmed, cancelled int, change func()) {
		p.Done, p.Confirmed, p.Cancelled = done, confirmed, cancelled
		change()
		a.say("%s", barLine(p, a.columns))
	}
	r := demo.Report{
		Orders: 20_000, Confirmed: 17_200, Cancelled: 2_800, Events: 79_801, ElapsedMS: 100_234, SagasPerSecond: 199.6,
		SagaLatencyMS: demo.Latency{P50: 1_271, P99: 15_295}, Seed: 7, Faults: faults, Audit: audit.Report{OK: true},
	}
	show(0, 0, 0, func() {})
	show(9_000, 3_100, 400, func() { p.Placed = 5_500 })
	if faults == demo.Outage || faults == demo.Storm {
		a.say("%s", noticeLine(7*time.Second, "the breaker of the gateway opens (status 503 Service Unavailable): payment pauses for 1.1 s", a.columns))
		show(20_000, 4_100, 500, func() { p.Placed, p.Phase, p.Breaker = 20_000, "settling", demo.BreakerOpen })
		show(20_001, 4_100, 500, func() { p.Breaker = demo.BreakerProbing })
		show(24_001, 8_100, 500, func() { p.Breaker = demo.BreakerRamp })
		r.Injected = demo.Injected{OutageMS: 5_000, Flaky: 0.2, SlowOrders: 1, SlowMS: 2_000}
		r.Audit.Outages = audit.Outages{Opened: 1, NotClosedMS: 4_615}
	}
	if faults == demo.Storm {
		show(30_000, 10_000, 1_000, func() { p.Crashes, p.Duplicates, p.DeadLetters, p.Breaker = 15, 2_104, 1_001, "" })
		r.DeadLettered, r.Replayed, r.Kept, r.DuplicatesInjected, r.DuplicatesSuppressed, r.CrashesInjected = 1_001, 976, 25, 2_104, 2_104, 15
	}
	show(40_018, 17_200, 2_800, func() { p.Phase = "done" })
	must(t, printDemo(a, r))
	a.say("%s", a.wrap((&demoCmd{Faults: string(faults)}).next(true), 0))
}

func TestDemo_without_a_terminal_is_lines(t *testing.T) {
	t.Parallel()
	p := demo.Progress{Phase: "settling", Elapsed: 7200 * time.Millisecond, Steps: 418, Done: 209, Orders: 200, Placed: 200, Confirmed: 1, DeadLetters: 1, Crashes: 1}
	if got, want := plainLine(p), "   7.2s  settling: 50 %, 1 of 200 orders ended, 1 dead letter, 1 crash"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := noticeLine(time.Second, "a\x1b[2Jb", 0); strings.Contains(got, "\x1b") || got != "   1.0s  "+terminal.Printable("a\x1b[2Jb") {
		t.Errorf("%q", got)
	}
}

func TestDemo_refuses_flags_that_do_not_apply(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--server", "nats://127.0.0.1:1"},
		{"--creds", "f"},
		{"--prefix", "p"},
		{"--wait", "1s"},
		{"--faults", "outage", "--orders", "39"},
		{"--rate", "-1"},
		{"extra"},
	} {
		got := farandole(t, "", append([]string{"demo"}, args...)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, strings.TrimLeft(args[0], "-")) {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
