package order

import (
	"fmt"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// The decisions are pure: an order and what has happened give the order's new
// state and what follows. A state that stays as it is means that the event
// comes too late, or again under another id, and nothing follows from it.

// onCaptured: the order is paid. While it is being cancelled, the refund is on its way.
func onCaptured(o Order, p events.Captured) (Order, []event.Draft, error) {
	switch o.Status {
	case "":
		return o, nil, unknown("payment captured", p.OrderID)
	case Placed:
		o.Status = Paid
	case Paid, Cancelling, Confirmed, Cancelled:
	}
	return o, nil, nil
}

// onReserved confirms the order, also one whose payment is still to be heard
// of: inventory reserves for paid orders only. An order that is being cancelled
// is not confirmed any more: inventory will be told to release.
func onReserved(o Order, p events.Reserved) (Order, []event.Draft, error) {
	switch o.Status {
	case "":
		return o, nil, unknown("inventory reserved", p.OrderID)
	case Placed, Paid:
		o.Status = Confirmed
		return o, []event.Draft{events.OrderConfirmed.New(o.key(), events.Confirmed{OrderID: o.ID, Total: o.money()})}, nil
	case Cancelling, Confirmed, Cancelled:
	}
	return o, nil, nil
}

// onDeclined cancels the order.
func onDeclined(o Order, p events.Declined) (Order, []event.Draft, error) {
	if o.Status == "" {
		return o, nil, unknown("payment declined", p.OrderID)
	}
	next, drafts := cancelled(o, "payment declined: "+p.Reason)
	return next, drafts, nil
}

// onRefunded cancels the order: nothing is left to be undone.
func onRefunded(o Order, p events.Refunded) (Order, []event.Draft, error) {
	if o.Status == "" {
		return o, nil, unknown("payment refunded", p.OrderID)
	}
	reason := p.Reason
	if o.Status == Cancelling {
		reason = o.Reason
	}
	next, drafts := cancelled(o, reason)
	return next, drafts, nil
}

func cancelled(o Order, reason string) (Order, []event.Draft) {
	switch o.Status {
	case Placed, Paid, Cancelling:
		o.Status, o.Reason = Cancelled, reason
		return o, []event.Draft{events.OrderCancelled.New(o.key(), events.Cancelled{OrderID: o.ID, Reason: reason})}
	default:
		return o, nil
	}
}

// onCancel decides on the customer's wish. Repeating it is fine until the
// order is final; then the error matches errFinal.
func onCancel(o Order) (Order, error) {
	switch o.Status {
	case "":
		return o, errNotFound
	case Placed, Paid:
		o.Status, o.Reason = Cancelling, byCustomer
	case Cancelling:
	case Confirmed, Cancelled:
		return o, fmt.Errorf("%w: %s", errFinal, o.Status)
	}
	return o, nil
}

// Why an order is being cancelled, for people.
const (
	byCustomer = "cancelled by customer"
	byDeadline = "deadline"
)

// onDeadline has an order undone that has not ended in time, as its customer's
// wish would. A deadline that comes late, or is another order's, does nothing.
func onDeadline(o Order, p events.Deadline) (Order, []event.Draft, error) {
	if o.Instance != p.Instance || o.Status != Placed && o.Status != Paid {
		return o, nil, nil
	}
	o.Status, o.Reason = Cancelling, byDeadline
	return o, []event.Draft{events.OrderCancelRequested.New(o.key(), events.CancelRequested{OrderID: o.ID, Reason: byDeadline})}, nil
}

// unknown is a transient error: the row may be late, and if it never comes
// the event must not vanish, as money may have moved.
func unknown(what, id string) error {
	return fmt.Errorf("order: %s for %w %s", what, ErrUnknownOrder, id)
}
