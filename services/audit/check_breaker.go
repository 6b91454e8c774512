package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/farandole/farandole/event"
)

// Event types of a breaker (docs/contract.md, "Pauses").
const (
	breakerDomain = "breaker."
	opened        = "breaker.opened.v1"
	halfOpened    = "breaker.half-opened.v1"
	closed        = "breaker.closed.v1"
)

// gateway is the demo system's only breaker that processes share.
const gateway = "gateway"

// hearing is how long after a breaker's opening a failure may still be an attempt. All
// processes know of it within half a second. A call that one had begun before may
// take two seconds more: the gateway is slow for some customers.
const hearing = 2500 * time.Millisecond

// collectChange takes note of an event of a breaker.
func (e *Evidence) collectChange(ev event.Event, key, eventType string) {
	c := Change{Key: key, ID: ev.ID(), Source: ev.Source(), Type: eventType}
	same := func(other Change) bool { return other.ID == c.ID && other.Source == c.Source }
	if !strings.HasPrefix(c.Type, breakerDomain) || slices.ContainsFunc(e.Changes, same) {
		return
	}
	if err := json.Unmarshal(ev.Data(), &c); err != nil {
		c.Problem = err.Error()
	}
	e.Changes = append(e.Changes, c)
}

// number is the id without the process that has the breaker for itself, which is alone.
func (c Change) number() (id string, alone bool) {
	id, _, alone = strings.Cut(c.ID, " ")
	return id, alone
}

// term is the number of the change, which is in its id.
func (c Change) term() uint64 {
	id, _ := c.number()
	n, err := strconv.ParseUint(id[strings.LastIndexByte(id, '-')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// flaw says what a breaker's event should be and what it is, if it is not.
func (c Change) flaw() (expected, found string) {
	id := fmt.Sprintf("%s-%d-%d", c.Key, c.Opened, c.term())
	if _, alone := c.number(); alone {
		id += " " + c.By
	}
	timed := c.Type == opened && !c.Forced || c.Type == halfOpened
	switch {
	case c.Type != opened && c.Type != halfOpened && c.Type != closed:
		return "a breaker's event of a known type", c.Type
	case c.Problem != "":
		return "data that can be read in " + c.Type + " " + c.ID, c.Problem
	case c.Consumer != payment || c.Breaker != gateway:
		return "an event of payment's breaker of the gateway, " + c.ID, fmt.Sprintf("consumer %q, breaker %q", c.Consumer, c.Breaker)
	case c.Source != "/"+payment:
		return "the source /" + payment + " of " + c.Type + " " + c.ID, c.Source
	case c.Key != payment+"-"+gateway:
		return "the key " + payment + "-" + gateway + " of " + c.Type + " " + c.ID, c.Key
	case c.term() == 0 || c.ID != id:
		return "an id made of key, opened and term, as in " + id, c.ID
	case c.At.IsZero() || c.By == "":
		return "who has changed the breaker, and when, in " + c.ID, fmt.Sprintf("%q at %v", c.By, c.At)
	case c.Until.IsZero() && timed, !c.Until.IsZero() && c.Type == closed:
		return "the time until which an open breaker stays as it is, and none of a closed one, in " + c.Type + " " + c.ID, c.Until.String()
	}
	return "", ""
}

// period is a time in which a breaker was not closed, and from when all processes knew.
type period struct{ from, known, to time.Time }

// checkBreakers: each event of a breaker has the form of one, and a later one does not
// count fewer openings. It finds out when the breaker was not closed.
//
// A process that dies when it has changed the breaker does not tell of it. So the end
// of a state is the next change that is known, or the time until which it lasts at least.
func (c *checker) checkBreakers() {
	slices.SortStableFunc(c.Changes, func(a, b Change) int { return int(a.term()) - int(b.term()) }) //nolint:gosec // small numbers
	var last *Change
	for i := range c.Changes {
		change := &c.Changes[i]
		if expected, found := change.flaw(); expected != "" {
			c.report(Breaker, "", expected, found)
			continue
		}
		if _, alone := change.number(); alone {
			continue // the others know nothing of it
		}
		if last != nil && (change.Opened < last.Opened || change.term() == last.term()) {
			c.report(Breaker, "", "a change that follows "+last.ID, change.ID)
		}
		if last != nil && last.Type != closed {
			c.endPeriod(change.At)
		}
		if change.Type != closed {
			p := period{change.At, change.At, change.Until}
			if change.Until.IsZero() { // until somebody closes it
				p.to = change.At.AddDate(1, 0, 0)
			}
			if last == nil || change.Opened > last.Opened {
				c.openings++
				p.known = p.from.Add(hearing)
			}
			c.notClosed = append(c.notClosed, p)
		}
		last = change
	}
}

// endPeriod has the latest period end at a time, if it would go on until later.
func (c *checker) endPeriod(at time.Time) {
	if p := &c.notClosed[len(c.notClosed)-1]; at.Before(p.to) {
		p.to = at
	}
}

// ofItself says that a failure is the event's own fault, whatever the dependency does:
// the demo's only panic is one on purpose.
func ofItself(class, reason string) bool {
	switch reason {
	case event.ReasonPermanent, event.ReasonDecode, event.ReasonExpired, event.ReasonCrashLoop:
		return true
	}
	return class == "panic"
}

// checkAttempts: no event has spent an attempt while its consumer's breaker was not closed.
func (c *checker) checkAttempts() {
	orders := map[string]string{} // by event key
	for order, events := range c.Events {
		for _, e := range events {
			orders[e.EventKey] = order
		}
	}
	for _, a := range c.Attempts {
		within := func(p period) bool { return a.At.After(p.known) && a.At.Before(p.to) }
		if !ofItself(a.Class, a.Reason) && slices.ContainsFunc(c.notClosed, within) {
			c.report(Attempts, orders[a.EventKey], "no attempt spent while the breaker of the gateway is not closed",
				fmt.Sprintf("one by %s at %s: %s", a.Consumer, a.At.Format(time.RFC3339Nano), a.Error))
		}
	}
}

// checkOutage: no event has become a dead letter because the dependency of its consumer was
// down, unless all its attempts were spent before the breaker opened: with few calls
// it opens late.
func (c *checker) checkOutage() {
	if c.openings == 0 {
		return
	}
	last := map[string]time.Time{} // by event key
	for _, a := range c.Attempts {
		if a.At.After(last[a.EventKey]) {
			last[a.EventKey] = a.At
		}
	}
	before := func(l Letter) bool {
		at, known := last[l.EventKey]
		return known && len(c.notClosed) > 0 && !at.After(c.notClosed[0].known)
	}
	for i, l := range slices.Concat(c.Former, c.Letters) {
		again := i >= len(c.Former) && slices.Contains(c.Former, l)
		if l.Consumer == payment && !ofItself(l.Class, l.Reason) && !again && !before(l) {
			c.report(Outage, l.Order, "no dead letter because the gateway was down", fmt.Sprintf("%s: %s, %s", l.ID, l.Reason, l.Class))
		}
	}
}

// Outages is what the audit has found about the breaker of the gateway.
type Outages struct {
	// Opened is how often it has opened, and NotClosedMS for how long it was not closed
	// at least, in milliseconds.
	Opened      int   `json:"opened"`
	NotClosedMS int64 `json:"not_closed_ms"`
	// Attempts were spent meanwhile, and DeadLetters are there because of it. Both are 0 if
	// the audit holds.
	Attempts    int `json:"attempts"`
	DeadLetters int `json:"dead_letters"`
}

// outages sums up what the checks have found.
func (c *checker) outages() Outages {
	o := Outages{Opened: c.openings}
	for _, p := range c.notClosed {
		o.NotClosedMS += max(0, p.to.Sub(p.from)).Milliseconds()
	}
	for _, v := range c.violations {
		switch v.Invariant {
		case Attempts:
			o.Attempts++
		case Outage:
			o.DeadLetters++
		}
	}
	return o
}
