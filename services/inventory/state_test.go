package inventory

import (
	"testing"

	"github.com/farandole/farandole/services/events"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	items := []events.Item{{SKU: "widget", Quantity: 2}}
	for _, tc := range []struct {
		name   string
		from   Status
		short  string
		decide string
		to     Status
		emits  string // type, "" for nothing
	}{
		{"all held", Reserving, "", "captured", Reserved, "inventory.reserved.v1"},
		{"one short", Reserving, "widget", "captured", Rejected, "inventory.rejected.v1"},
		{"cancelled before the payment", Released, "", "captured", Released, "inventory.rejected.v1"},
		{"second capture of a reserved order", Reserved, "", "captured", Reserved, ""},
		{"second capture of a rejected order", Rejected, "", "captured", Rejected, ""},
		{"second capture of a confirmed order", Settled, "", "captured", Settled, ""},
		{"cancel before anything", "", "", "cancel", Released, "inventory.released.v1"},
		{"cancel while reserving", Reserving, "", "cancel", Released, "inventory.released.v1"},
		{"cancel reserved", Reserved, "", "cancel", Released, "inventory.released.v1"},
		{"cancel rejected", Rejected, "", "cancel", Rejected, "inventory.released.v1"},
		{"cancel twice", Released, "", "cancel", Released, ""},
		{"cancel confirmed", Settled, "", "cancel", Settled, ""},
		{"confirm reserved", Reserved, "", "confirm", Settled, ""},
		{"confirm released", Released, "", "confirm", Released, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := Order{ID: "ord-1", Status: tc.from, Items: items}
			next, emitted := o, ""
			switch tc.decide {
			case "captured":
				n, drafts := onCaptured(o, tc.short)
				next = n
				for _, d := range drafts {
					emitted += string(d.Type)
				}
			case "cancel":
				n, drafts := onCancel(o)
				next = n
				for _, d := range drafts {
					emitted += string(d.Type)
				}
			case "confirm":
				next = onConfirmed(o)
			}
			if next.Status != tc.to || emitted != tc.emits {
				t.Fatalf("got %q and %q, want %q and %q", next.Status, emitted, tc.to, tc.emits)
			}
		})
	}
}

func TestStockConservesAndFences(t *testing.T) {
	t.Parallel()
	s := Stock{SKU: "widget", Initial: 10, Available: 10}
	must := func(next Stock, ok bool) {
		t.Helper()
		if !ok {
			t.Fatal("no change")
		}
		s = next
		conserved(t, s)
	}
	refuse := func(_ Stock, ok bool) {
		t.Helper()
		if ok {
			t.Fatal("changed")
		}
	}
	must(s.hold("a", 5, 4))
	must(s.hold("a", 7, 4)) // a rerun takes it over
	must(s.hold("a", 6, 4)) // a stalled run does not take it back
	if s.Holds["a"] != (Hold{Quantity: 4, Run: 7}) || s.Available != 6 {
		t.Fatalf("%+v", s)
	}
	refuse(s.hold("b", 8, 7))
	refuse(s.release("a", 7)) // the deciding run's own hold stays
	refuse(s.settle("a", 6))
	must(s.settle("a", 7))
	refuse(s.settle("a", 7))
	must(s.hold("a", 6, 4)) // a stalled run holds in vain
	refuse(s.settle("a", 7))
	must(s.release("a", 7))
	if s.Reserved != 4 || s.Available != 6 || len(s.Holds) != 0 {
		t.Fatalf("%+v", s)
	}
}

func conserved(t *testing.T, s Stock) {
	t.Helper()
	sum := s.Available + s.Reserved
	for _, h := range s.Holds {
		sum += h.Quantity
	}
	if sum != s.Initial || s.Available < 0 {
		t.Fatalf("not conserved: %+v", s)
	}
}
