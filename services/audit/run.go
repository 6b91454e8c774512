package audit

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/farandole/farandole/bus"
)

// Run collects the evidence of the system to which b is connected, and checks it. Its
// parameters and its error are those of [Collect]. What is wrong with the system is
// in the report.
func Run(ctx context.Context, b *bus.Bus, orders *sql.DB, booksURL string, expected ...string) (Report, error) {
	e, err := Collect(ctx, b, orders, booksURL, expected)
	if err != nil {
		return Report{}, err
	}
	return Judge(e), nil
}

// Judge checks the evidence and counts what is in it. It does no I/O.
func Judge(e Evidence) Report {
	c := check(e)
	r := Report{
		Violations: c.violations, Outages: c.outages(), Orders: len(c.orders), Undecodable: len(e.Undecodable), DeadLetters: len(e.Letters),
		Outcomes: map[string]string{},
	}
	r.OK = len(r.Violations) == 0
	if r.OK {
		r.Violations = []Violation{} // [] in JSON, not null
	}
	for _, id := range c.orders {
		r.count(c, id)
	}
	for key := range e.Events {
		stored, distinct := len(e.Events[key]), len(c.distinct(key))
		r.Events += distinct
		r.Copies += stored - distinct
		r.CopiesSuppressed += c.suppressed(key)
	}
	slices.Sort(r.Latencies)
	return r
}

func (r *Report) count(c *checker, id string) {
	status := c.records[id].Status
	r.Outcomes[id] = status
	switch status {
	case statusConfirmed:
		r.Confirmed++
	case statusCancelled:
		r.Cancelled++
	default:
		r.Unfinished++
		return
	}
	if latency, ok := c.latency(id); ok {
		r.Latencies = append(r.Latencies, latency)
	}
}

// latency returns the time from an order's first event to its final one.
func (c *checker) latency(id string) (time.Duration, bool) {
	events := c.ofSaga(id)
	for _, e := range events {
		if e.Type == confirmed || e.Type == cancelled {
			return e.At.Sub(events[0].At), true
		}
	}
	return 0, false
}

// suppressed counts the copies among the events of a key that had no effect: all copies
// of an event together have caused at most one event.
func (c *checker) suppressed(key string) int {
	following := map[string]int{}
	for _, e := range c.distinct(key) {
		following[e.Causation]++
	}
	seen, n := map[string]bool{}, 0
	for _, e := range c.Events[key] {
		if seen[e.EventKey] && following[e.ID] <= 1 {
			n++
		}
		seen[e.EventKey] = true
	}
	return n
}
