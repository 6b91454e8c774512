package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// distinct returns an order's events without copies, oldest first.
func (c *checker) distinct(id string) []Event {
	seen := map[string]bool{}
	var events []Event
	for _, e := range c.Events[id] {
		if !seen[e.EventKey] {
			seen[e.EventKey] = true
			events = append(events, e)
		}
	}
	return events
}

// ofSaga returns the events of an order's saga, oldest first and without copies. It
// leaves out forged events that a service has refused: they come from somebody
// else, are in the dead letters, and caused nothing.
func (c *checker) ofSaga(id string) []Event {
	events := c.distinct(id)
	caused := map[string]bool{}
	for _, e := range events {
		caused[e.Causation] = true
	}
	return slices.DeleteFunc(events, func(e Event) bool {
		return c.parked[e.EventKey] && !caused[e.ID] && c.isForged(e)
	})
}

// isForged reports whether e has a source that is not the service of its type:
// payment.captured.v1 has to come from "/payment".
func (c *checker) isForged(e Event) bool {
	domain, _, _ := strings.Cut(e.Type, ".")
	return e.Source != "/"+domain
}

// checkIdentities: an order has at most one event of each type. Two events of a type
// with different ids mean that a step took effect twice.
func (c *checker) checkIdentities(id string) {
	byType := map[string][]string{}
	for _, e := range c.ofSaga(id) {
		byType[e.Type] = append(byType[e.Type], e.ID)
	}
	for _, t := range slices.Sorted(maps.Keys(byType)) {
		if ids := byType[t]; len(ids) > 1 {
			c.report(Path, id, "one "+t, fmt.Sprintf("%d: ids %s", len(ids), strings.Join(ids, ", ")))
		}
	}
}

// checkPath: the order begins with order.placed.v1, and ends with one final event that
// fits its status. The cause of every event is in the stream and has a type that
// may cause it.
func (c *checker) checkPath(id string) {
	events := c.ofSaga(id)
	types, finals := map[string]bool{}, []string{}
	byID := map[string]Event{}
	for _, e := range events {
		types[e.Type], byID[e.ID] = true, e
		if e.Type == confirmed || e.Type == cancelled {
			finals = append(finals, e.Type)
		}
	}
	if !types[placed] && !c.unsent[id] {
		c.report(Stored, id, placed+" in the stream", "none")
	}
	c.checkEnd(id, finals)
	for _, e := range events {
		r, declared := rules[e.Type]
		if !declared {
			c.report(Path, id, "only event types of the demo system", e.Type)
			continue
		}
		if len(r.causes) == 0 || r.outside && e.Causation == "" {
			continue
		}
		cause, there := byID[e.Causation]
		switch {
		case !there:
			c.report(Causation, id, fmt.Sprintf("the event that caused %s %s in the stream", e.Type, e.ID), fmt.Sprintf("no event with id %q", e.Causation))
		case !slices.Contains(r.causes, cause.Type):
			c.report(Path, id, e.Type+" caused by "+strings.Join(r.causes, " or "), "caused by "+cause.Type)
		}
	}
}

func (c *checker) checkEnd(id string, finals []string) {
	o := c.records[id]
	want := map[string]string{statusConfirmed: confirmed, statusCancelled: cancelled}[o.Status]
	switch {
	case len(finals) > 1:
		// checkIdentities reports two of one type. Here the order is both confirmed and cancelled.
		if finals[0] != finals[len(finals)-1] {
			c.report(Path, id, "one final event", strings.Join(finals, ", "))
		}
	case want != "" && len(finals) == 0 && c.unsent[id]:
	case want != "" && len(finals) == 0:
		c.report(Path, id, want+" for the "+o.Status+" order", "no final event")
	case want != "" && finals[0] != want:
		c.report(Path, id, want+" for the "+o.Status+" order", finals[0])
	case want == "" && len(finals) == 1:
		c.report(Path, id, "a final status, as there is "+finals[0], "status "+o.Status)
	}
}

// checkFollowUps: each event that must be followed by another caused exactly one. There
// is one exception: once a cancellation is requested, a step may come too late and
// cause nothing, if the order itself has ended.
func (c *checker) checkFollowUps(id string) {
	events := c.ofSaga(id)
	withdrawn := false
	following := map[string][]string{}
	for _, e := range events {
		withdrawn = withdrawn || e.Type == cancelRequested
		if e.Type != deadline { // it is a timer's event, and may come besides the one that must follow
			following[e.Causation] = append(following[e.Causation], e.Type)
		}
	}
	excused := c.excused(id) || withdrawn && ended(c.records[id])
	for _, e := range events {
		follows := rules[e.Type].follows
		switch got := following[e.ID]; {
		case len(got) > 1:
			c.report(FollowUp, id, "one event to follow "+e.Type, strings.Join(got, ", "))
		case len(got) == 0 && len(follows) > 0 && !excused:
			c.report(FollowUp, id, strings.Join(follows, " or ")+" to follow "+e.Type, "nothing")
		}
	}
}

// checkStrangers: every event of an unknown order, and every message that is no event,
// is in the dead letters. Otherwise a service has lost it. Events of a breaker are of no
// order, and no service handles them: checkBreakers looks at them.
func (c *checker) checkStrangers() {
	for _, key := range slices.Sorted(maps.Keys(c.Events)) {
		if _, known := c.records[key]; known || c.expected[key] {
			continue
		}
		for _, e := range c.distinct(key) {
			if !c.parked[e.EventKey] && !strings.HasPrefix(e.Type, breakerDomain) {
				c.report(Accounting, key, fmt.Sprintf("a dead letter for %s %s of an unknown order", e.Type, e.ID), "no dead letter")
			}
		}
	}
	for _, m := range c.Undecodable {
		if !c.parked[m.EventKey] {
			c.report(Accounting, "", fmt.Sprintf("a dead letter for undecodable message %d on %s", m.Sequence, m.Subject), "no dead letter")
		}
	}
}
