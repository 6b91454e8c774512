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

// ofSaga returns the events that took part in an order's saga, in their order
// and without copies. What somebody else has forged about the order and a
// service has refused (it lies in the dead letters and led to nothing) is no part of it.
func (c *checker) ofSaga(id string) []Event {
	events := c.distinct(id)
	caused := map[string]bool{}
	for _, e := range events {
		caused[e.Causation] = true
	}
	return slices.DeleteFunc(events, func(e Event) bool {
		return c.parked[e.EventKey] && !caused[e.ID] && c.isStranger(e)
	})
}

// isStranger says whether a service of the system cannot have emitted it.
func (c *checker) isStranger(e Event) bool {
	domain, _, _ := strings.Cut(e.Type, ".")
	return e.Source != "/"+domain
}

// checkIdentities: what happened once has one identity. Two ids for one type
// of one order mean that a step took effect twice.
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

// checkPath: the order begins with placed, ends with one final event that fits
// its status, and every step has a cause that may cause it and came before.
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
			c.report(Path, id, "declared event types only", e.Type)
			continue
		}
		if len(r.causes) == 0 || r.outside && e.Causation == "" {
			continue
		}
		cause, there := byID[e.Causation]
		switch {
		case !there:
			c.report(Causation, id, fmt.Sprintf("the cause of %s %s in the stream", e.Type, e.ID), fmt.Sprintf("no event with id %q", e.Causation))
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
		// checkIdentities has two of one type; this is about both kinds.
		if finals[0] != finals[len(finals)-1] {
			c.report(Path, id, "one final event", strings.Join(finals, ", "))
		}
	case want != "" && len(finals) == 0 && c.unsent[id]:
	case want != "" && len(finals) == 0:
		c.report(Path, id, want+" for the "+o.Status+" order", "no final event")
	case want != "" && finals[0] != want:
		c.report(Path, id, want+" for the "+o.Status+" order", finals[0])
	case want == "" && len(finals) == 1:
		c.report(Path, id, "an order that knows of its "+finals[0], "status "+o.Status)
	}
}

// checkFollowUps: of what must follow from an event, exactly one thing did. In
// an order that was asked to be cancelled steps may come too late and end
// there, if only the order itself ended.
func (c *checker) checkFollowUps(id string) {
	events := c.ofSaga(id)
	withdrawn := false
	following := map[string][]string{}
	for _, e := range events {
		withdrawn = withdrawn || e.Type == cancelRequested
		if e.Type != deadline { // it follows by itself
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

// checkStrangers: an event about no order, and a message that is no event, is
// in the dead letters; otherwise somebody swallowed or lost it.
func (c *checker) checkStrangers() {
	for _, key := range slices.Sorted(maps.Keys(c.Events)) {
		if _, known := c.records[key]; known || c.expected[key] {
			continue
		}
		for _, e := range c.distinct(key) {
			if !c.parked[e.EventKey] {
				c.report(Accounting, key, fmt.Sprintf("%s %s of no order in the dead letters", e.Type, e.ID), "no dead letter")
			}
		}
	}
	for _, m := range c.Undecodable {
		if !c.parked[m.EventKey] {
			c.report(Accounting, "", fmt.Sprintf("undecodable message %d on %s in the dead letters", m.Sequence, m.Subject), "no dead letter")
		}
	}
}
