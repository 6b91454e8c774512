package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Check compares the evidence with every invariant and returns the violations: first
// those of each order, then the others. It does no I/O.
func Check(e Evidence) []Violation { return check(e).violations }

// check is Check, and returns all that it has found.
func check(e Evidence) *checker {
	c := newChecker(e)
	for _, id := range c.orders {
		c.checkFinal(id)
		c.checkMoney(id)
		c.checkReservation(id)
		c.checkIdentities(id)
		c.checkPath(id)
		c.checkFollowUps(id)
	}
	c.checkStock()
	c.checkBooks()
	c.checkStrangers()
	c.checkOrphans()
	c.checkOutbox()
	c.checkInbox()
	c.checkCourses()
	c.checkBreakers()
	c.checkAttempts()
	c.checkOutage()
	return c
}

// checker is one run of Check: the evidence and indexes of it.
type checker struct {
	Evidence
	orders     []string // expected and recorded ids, sorted
	expected   map[string]bool
	records    map[string]Order
	charges    map[string][]Charge
	letters    map[string][]Letter // by order
	parked     map[string]bool     // event keys
	unsent     map[string]bool     // orders with a parked row in the outbox
	violations []Violation

	reservations map[string]Reservation

	notClosed []period // of the breaker; filled in by checkBreakers
	openings  int      // of it; likewise
}

func newChecker(e Evidence) *checker {
	c := &checker{
		Evidence: e, expected: map[string]bool{}, records: map[string]Order{},
		charges: map[string][]Charge{}, letters: map[string][]Letter{}, parked: map[string]bool{}, unsent: map[string]bool{},
		reservations: map[string]Reservation{},
	}
	ids := map[string]bool{}
	for _, o := range e.Orders {
		c.records[o.ID] = o
		ids[o.ID] = true
	}
	for _, id := range e.Expected {
		ids[id], c.expected[id] = true, true
	}
	c.orders = slices.Sorted(maps.Keys(ids))
	for _, ch := range e.Charges {
		c.charges[ch.Order] = append(c.charges[ch.Order], ch)
	}
	for _, r := range e.Reservations {
		c.reservations[r.Order] = r
	}
	for _, l := range e.Letters {
		c.letters[l.Order] = append(c.letters[l.Order], l)
		c.parked[l.EventKey] = true
	}
	for _, r := range e.Outbox {
		if r.Status == rowDeadLetter {
			c.unsent[r.Order] = true
		}
	}
	return c
}

func (c *checker) report(invariant, order, expected, found string) {
	c.violations = append(c.violations, Violation{invariant, order, expected, found})
}

// ended reports whether an order has reached a final status.
func ended(o Order) bool { return o.Status == statusConfirmed || o.Status == statusCancelled }

// excused reports whether a dead letter or a parked row of the outbox explains why
// the order has not ended.
func (c *checker) excused(id string) bool { return len(c.letters[id]) > 0 || c.unsent[id] }

// checkFinal: every accepted order is in the table and has ended, or is excused.
func (c *checker) checkFinal(id string) {
	o, kept := c.records[id]
	switch {
	case !kept:
		c.report(Final, id, "a record of the accepted order", "none")
	case !ended(o) && !c.excused(id):
		c.report(Final, id, "confirmed or cancelled, or a dead letter", "status "+cmp.Or(o.Status, "none"))
	}
}

// checkMoney: an order is charged at most once. What was charged and not refunded is
// the total of a confirmed order, and nothing for a cancelled one.
func (c *checker) checkMoney(id string) {
	o := c.records[id]
	charges := c.charges[id]
	if len(charges) > 1 {
		c.report(Money, id, "one charge", fmt.Sprintf("%d: %s", len(charges), describeCharges(charges)))
	}
	var kept int64
	for _, ch := range charges {
		kept += ch.Amount - ch.Refunded
		if ch.Refunded < 0 || ch.Refunded > ch.Amount {
			c.report(Money, id, fmt.Sprintf("a refund of at most %d", ch.Amount), fmt.Sprint(ch.Refunded))
		}
		if ch.Currency != o.Currency {
			c.report(Money, id, "a charge in "+o.Currency, ch.Currency)
		}
	}
	switch {
	case o.Status == statusConfirmed && kept != o.Total:
		c.report(Money, id, fmt.Sprintf("%d %s kept for the confirmed order", o.Total, o.Currency), fmt.Sprint(kept))
	case o.Status == statusCancelled && kept != 0:
		c.report(Money, id, "nothing kept for the cancelled order", fmt.Sprint(kept))
	}
}

func describeCharges(charges []Charge) string {
	parts := make([]string, 0, len(charges))
	for _, ch := range charges {
		parts = append(parts, fmt.Sprintf("%s of %d %s", ch.ID, ch.Amount, ch.Currency))
	}
	return strings.Join(parts, ", ")
}

// checkBooks: every charge is for an order that exists.
func (c *checker) checkBooks() {
	for _, ch := range c.Charges {
		if _, known := c.records[ch.Order]; !known {
			c.report(Money, ch.Order, "no charge for an order that does not exist", "charge "+ch.ID)
		}
	}
}
