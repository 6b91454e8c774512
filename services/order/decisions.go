package order

import (
	"fmt"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// The functions in this file read and write nothing. From an order and an event
// they compute the order's new state and the events that follow. If the status
// stays as it is, nothing follows: the event is late, or was repeated under
// another id.

// onCaptured marks the order as paid. One that is being cancelled stays so: its
// refund follows.
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

// onReserved confirms the order, also if payment.captured.v1 has not arrived yet:
// inventory reserves only for paid orders. An order that is being cancelled is not
// confirmed: inventory releases its items.
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

// onRefunded cancels the order: the refund is the last step of undoing it.
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

// onCancel begins to cancel the order because its customer asks for it. It may be
// repeated. If the order is final the error matches errFinal.
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

// The reasons for which an order is cancelled, for people.
const (
	byCustomer = "cancelled by customer"
	byDeadline = "deadline"
)

// onDeadline begins to cancel an order that is not final in time. The deadline of
// an order that is final or being cancelled, or of an earlier order with the same
// id, does nothing.
func onDeadline(o Order, p events.Deadline) (Order, []event.Draft, error) {
	if o.Instance != p.Instance || o.Status != Placed && o.Status != Paid {
		return o, nil, nil
	}
	o.Status, o.Reason = Cancelling, byDeadline
	return o, []event.Draft{events.OrderCancelRequested.New(o.key(), events.CancelRequested{OrderID: o.ID, Reason: byDeadline})}, nil
}

// unknown is the error for an order without a row. It is not permanent: the row may
// be committed later. If it never is, the event becomes a dead letter, because the
// customer may have been charged. Other events of the order run meanwhile.
func unknown(what, id string) error {
	return fmt.Errorf("order: %s for %w %s", what, ErrUnknownOrder, id)
}
