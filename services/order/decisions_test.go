package order

import (
	"errors"
	"testing"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	const id = "ord-1"
	decide := map[string]func(Order) (Order, []event.Draft, error){
		"captured": func(o Order) (Order, []event.Draft, error) { return onCaptured(o, events.Captured{OrderID: id}) },
		"reserved": func(o Order) (Order, []event.Draft, error) { return onReserved(o, events.Reserved{OrderID: id}) },
		"declined": func(o Order) (Order, []event.Draft, error) {
			return onDeclined(o, events.Declined{OrderID: id, Reason: "no funds"})
		},
		"refunded": func(o Order) (Order, []event.Draft, error) {
			return onRefunded(o, events.Refunded{OrderID: id, Reason: "out of stock: unicorn"})
		},
		"deadline": func(o Order) (Order, []event.Draft, error) {
			return onDeadline(o, events.Deadline{OrderID: id, Instance: "i"})
		},
	}
	const confirm, cancel, undo = "order.confirmed.v1", "order.cancelled.v1", "order.cancel_requested.v1"
	for _, tt := range []struct {
		event  string
		from   Status
		to     Status
		emits  event.Type
		reason string
	}{
		{"captured", Placed, Paid, "", ""},
		{"captured", Paid, Paid, "", ""},
		{"captured", Cancelling, Cancelling, "", "wish"},
		{"captured", Confirmed, Confirmed, "", ""},
		{"captured", Cancelled, Cancelled, "", ""},
		{"reserved", Placed, Confirmed, confirm, ""},
		{"reserved", Paid, Confirmed, confirm, ""},
		{"reserved", Cancelling, Cancelling, "", "wish"},
		{"reserved", Confirmed, Confirmed, "", ""},
		{"reserved", Cancelled, Cancelled, "", ""},
		{"declined", Placed, Cancelled, cancel, "payment declined: no funds"},
		{"declined", Paid, Cancelled, cancel, "payment declined: no funds"},
		{"declined", Cancelling, Cancelled, cancel, "payment declined: no funds"},
		{"declined", Confirmed, Confirmed, "", ""},
		{"declined", Cancelled, Cancelled, "", ""},
		{"refunded", Placed, Cancelled, cancel, "out of stock: unicorn"},
		{"refunded", Paid, Cancelled, cancel, "out of stock: unicorn"},
		{"refunded", Cancelling, Cancelled, cancel, "wish"},
		{"refunded", Confirmed, Confirmed, "", ""},
		{"refunded", Cancelled, Cancelled, "", ""},
		{"deadline", "", "", "", ""},
		{"deadline", Placed, Cancelling, undo, "deadline"},
		{"deadline", Paid, Cancelling, undo, "deadline"},
		{"deadline", Cancelling, Cancelling, "", "wish"},
		{"deadline", Confirmed, Confirmed, "", ""},
		{"deadline", Cancelled, Cancelled, "", ""},
	} {
		t.Run(tt.event+" when "+string(tt.from), func(t *testing.T) {
			t.Parallel()
			o := Order{ID: id, Instance: "i", Status: tt.from, Currency: "EUR", Total: 5000}
			if tt.from == Cancelling {
				o.Reason = "wish"
			}
			next, drafts, err := decide[tt.event](o)
			if err != nil {
				t.Fatal(err)
			}
			if next.Status != tt.to || next.Reason != tt.reason {
				t.Errorf("order is %s (%q), want %s (%q)", next.Status, next.Reason, tt.to, tt.reason)
			}
			switch {
			case tt.emits == "" && len(drafts) > 0:
				t.Errorf("emits %v, want nothing", drafts)
			case tt.emits != "" && (len(drafts) != 1 || drafts[0].Type != tt.emits || drafts[0].Key != id):
				t.Errorf("emits %v, want one %s about %s", drafts, tt.emits, id)
			}
		})
	}
	for e, decide := range decide {
		if e == "deadline" { // of no order it is nobody's concern
			continue
		}
		if next, drafts, err := decide(Order{}); !errors.Is(err, ErrUnknownOrder) || next.Status != "" || drafts != nil {
			t.Errorf("%s for an unknown order gives %s, %v, %v; want an error", e, next.Status, drafts, err)
		}
	}
	_, _, err := decide["captured"](Order{})
	if want := "order: payment captured for unknown order ord-1"; err.Error() != want {
		t.Errorf("error is %q, want %q", err, want)
	}
}

func TestCancelDecision(t *testing.T) {
	t.Parallel()
	for from, want := range map[Status]struct {
		to  Status
		err error
	}{
		"":         {"", errNotFound},
		Placed:     {Cancelling, nil},
		Paid:       {Cancelling, nil},
		Cancelling: {Cancelling, nil},
		Confirmed:  {Confirmed, errFinal},
		Cancelled:  {Cancelled, errFinal},
	} {
		if next, err := onCancel(Order{Status: from}); next.Status != want.to || !errors.Is(err, want.err) {
			t.Errorf("cancelling an order that is %q gives %q, %v; want %q, %v", from, next.Status, err, want.to, want.err)
		}
	}
}
