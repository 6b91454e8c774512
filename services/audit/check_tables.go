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

// checkOutbox: nothing waits in the outbox; what it says is published is in the
// stream; it tells of each thing once. A parked row has its story, and explains
// that its order goes no further.
func (c *checker) checkOutbox() {
	stored := map[string]bool{}
	for _, events := range c.Events {
		for _, e := range events {
			stored[e.EventKey] = true
		}
	}
	first := map[string]Row{} // of the events, by subject
	for _, r := range c.Outbox {
		switch {
		case r.Status == rowDeadLetter && r.Attempts == 0:
			c.report(Outbox, r.Order, fmt.Sprintf("the story of why row %d on %s is parked", r.ID, r.Subject), "no attempt")
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

// checkInbox: every event that was taken up has come to an end; one that was
// parked has its dead letter.
func (c *checker) checkInbox() {
	for _, m := range c.Inbox {
		switch m.State {
		case "done", "discarded":
		case "known": // no event's: which events the consumer has been given
		case "parked":
			if !slices.ContainsFunc(c.Letters, func(l Letter) bool { return l.Consumer == m.Consumer && l.EventKey == m.EventKey }) {
				c.report(Inbox, "", fmt.Sprintf("a dead letter of event %s, parked by %s", m.EventKey, m.Consumer), "none")
			}
		default:
			c.report(Inbox, "", fmt.Sprintf("an end of event %s at %s", m.EventKey, m.Consumer), m.State)
		}
	}
}

// checkOrphans: what the order service has told of is in its table.
func (c *checker) checkOrphans() {
	for _, key := range slices.Sorted(maps.Keys(c.Events)) {
		_, kept := c.records[key]
		if events := c.Events[key]; !kept && slices.ContainsFunc(events, func(e Event) bool { return e.Type == placed && !c.isStranger(e) }) {
			c.report(Stored, key, "the order that "+placed+" tells of", "none")
		}
	}
}
