package main

import (
	"strings"
	"testing"
)

// Where a flow goes: what it says at the start and after each turn, "-" for a turn that
// it does not wait for.
func TestFlow(t *testing.T) {
	t.Parallel()
	type of struct {
		turn
		part int
	}
	for name, tt := range map[string]struct {
		turns []of
		says  string
	}{
		"all goes well": {
			[]of{{done, 0}, {done, 1}, {done, 2}},
			"payment.charge inventory.reserve shipping.ship order.completed",
		},
		"the first part is refused": {
			[]of{{refused, 0}},
			"payment.charge order.cancelled",
		},
		"the last part is refused": {
			[]of{{done, 0}, {done, 1}, {refused, 2}, {undone, 1}, {undone, 0}},
			"payment.charge inventory.reserve shipping.ship inventory.release payment.refund order.cancelled",
		},
		"the time is over before a reply": {
			[]of{{done, 0}, {overdue, 0}, {done, 1}, {undone, 1}, {undone, 0}},
			"payment.charge inventory.reserve inventory.release - payment.refund order.cancelled",
		},
		"the time is over when it is too late": {
			[]of{{refused, 0}, {overdue, 0}},
			"payment.charge order.cancelled -",
		},
		"the time is over after the end": {
			[]of{{done, 0}, {done, 1}, {done, 2}, {overdue, 0}},
			"payment.charge inventory.reserve shipping.ship order.completed -",
		},
		"replies come twice and out of turn": {
			[]of{{done, 2}, {done, 0}, {done, 0}, {refused, 0}, {undone, 1}, {refused, 1}, {refused, 1}, {done, 0}, {undone, 0}, {undone, 0}},
			"payment.charge - inventory.reserve - - - payment.refund - - order.cancelled -",
		},
	} {
		f := flow{Phase: doing}
		said := []string{short(string(f.says("ord-1").Type))}
		for _, turn := range tt.turns {
			next, moved := f.next(turn.turn, turn.part, "")
			if f = next; !moved {
				said = append(said, "-")
				continue
			}
			said = append(said, short(string(f.says("ord-1").Type)))
		}
		if got := strings.Join(said, " "); got != tt.says {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tt.says)
		}
	}
}

// short is "payment.charge" for "payment.charge.v1".
func short(eventType string) string { return strings.TrimSuffix(eventType, ".v1") }
