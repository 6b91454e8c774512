package demo

import (
	"fmt"
	"strings"

	"github.com/farandole/farandole/internal/terminal"
)

// Story says in a few words for people what a run with these settings does.
func (c Config) Story() string {
	c = c.withDefaults()
	dose := doses[c.Faults]
	meanwhile := dose.story()
	placing := fmt.Sprintf("%s (seed %d)", terminal.Count(c.Orders, "order", "orders"), c.Seed)
	switch {
	case c.Faults == None:
		return "This places " + placing + " in a system of its own, without any fault, and audits the books."
	case dose.crashes == 0:
		return "This places " + placing + " in a system of its own. Meanwhile " + meanwhile + ". Then it audits the books."
	}
	return "This places " + placing + " in a system of its own. Meanwhile " + meanwhile +
		". Then it mends the faults, replays the dead letters, and audits the books."
}

// story lists what a dose does.
func (d dose) story() string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(d.duplicates > 0, "it repeats %d %% of the events", d.duplicates/10)
	add(d.outage > 0, "the payment gateway is down for %s", seconds(d.outage))
	add(d.flaky > 0, "%.0f %% of the calls to the gateway fail", 100*d.flaky)
	add(d.crashes == 1, "every service is killed once")
	add(d.crashes > 1, "every process is killed %d times", d.crashes)
	add(d.poison > 0, "%s come that no service can handle", terminal.Count(poisonKinds*d.poison, "message", "messages"))
	if len(parts) > 1 {
		parts[len(parts)-1] = "and " + parts[len(parts)-1]
	}
	return strings.Join(parts, ", ")
}

// steps is how many steps a run has: each order is placed and comes to its end, each
// process is killed so often, the gateway comes back, the dead letters are replayed,
// and the system is audited.
func (r *run) steps() int {
	n := 2*r.cfg.Orders + r.dose.crashes*len(r.supervisors) + 2
	if r.dose.outage > 0 {
		n++
	}
	return n
}

// stepsDone is how many of them are behind. The last one is when the run has ended.
func (r *run) stepsDone(p Progress) int {
	n := p.Placed + min(p.Confirmed+p.Cancelled, p.Orders) + p.Crashes
	if r.down.Load() > 0 {
		n++
	}
	if p.Phase == phaseAuditing {
		n++
	}
	return n
}
