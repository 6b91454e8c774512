package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Statuses of a row of the outbox.
const (
	rowPublished  = "PUBLISHED"
	rowDeadLetter = "DEAD_LETTER"
)

// checkOutbox: no row waits. The event of every published row is in the stream. No two
// rows are the same event of an order. A parked row has at least one attempt that says why.
func (c *checker) checkOutbox() {
	stored := map[string]bool{}
	for _, events := range c.Events {
		for _, e := range events {
			stored[e.EventKey] = true
		}
	}
	first := map[string]Row{} // by subject
	for _, r := range c.Outbox {
		switch {
		case r.Status == rowDeadLetter && r.Attempts == 0:
			c.report(Outbox, r.Order, fmt.Sprintf("an attempt that says why row %d on %s is parked", r.ID, r.Subject), "no attempt")
		case r.Status == rowDeadLetter:
		case r.Status != rowPublished:
			c.report(Outbox, r.Order, fmt.Sprintf("row %d on %s published", r.ID, r.Subject), r.Status)
		case r.Event && !stored[r.MessageID]:
			c.report(Outbox, r.Order, fmt.Sprintf("the message of row %d on %s in the stream", r.ID, r.Subject), "none")
		}
		if earlier, there := first[r.Subject]; there && r.Event {
			c.report(Outbox, r.Order, "one row on "+r.Subject, fmt.Sprintf("rows %d and %d", earlier.ID, r.ID))
		}
		first[r.Subject] = cmp.Or(first[r.Subject], r)
	}
}

// checkInbox: every event that a consumer has claimed is done, discarded or parked. A
// parked one has a dead letter.
func (c *checker) checkInbox() {
	for _, m := range c.Inbox {
		switch m.State {
		case "done", "discarded":
		case "known": // not an event's mark: it records which subjects the consumer has had
		case "parked":
			if !slices.ContainsFunc(c.Letters, func(l Letter) bool { return l.Consumer == m.Consumer && l.EventKey == m.EventKey }) {
				c.report(Inbox, "", fmt.Sprintf("a dead letter for event %s, which %s has parked", m.EventKey, m.Consumer), "none")
			}
		default:
			c.report(Inbox, "", fmt.Sprintf("event %s done, discarded or parked by %s", m.EventKey, m.Consumer), "state "+m.State)
		}
	}
}

// checkOrphans: every order for which the order service has emitted order.placed.v1 is
// in its table.
func (c *checker) checkOrphans() {
	for _, key := range slices.Sorted(maps.Keys(c.Events)) {
		_, kept := c.records[key]
		if events := c.Events[key]; !kept && slices.ContainsFunc(events, func(e Event) bool { return e.Type == placed && !c.isForged(e) }) {
			c.report(Stored, key, "a row in the orders table, as "+placed+" is in the stream", "none")
		}
	}
}
