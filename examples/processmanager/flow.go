package main

import "github.com/farandole/farandole/event"

// part is one service's part in an order: a command to do it with its two replies, and
// a command to undo it with its reply.
type part struct {
	do            event.Definition[Order]
	done, refused event.Definition[Reply]
	undo          event.Definition[Order]
	undone        event.Definition[Reply]
}

// parts are done in this order and undone in the reverse one.
var parts = [...]part{
	{chargePayment, paymentCharged, paymentRefused, refundPayment, paymentRefunded},
	{reserveItems, itemsReserved, itemsRefused, releaseItems, itemsReleased},
	{shipParcel, parcelShipped, parcelRefused, recallParcel, parcelRecalled},
}

// phase is where a flow goes.
type phase string

const (
	doing     phase = "doing"
	undoing   phase = "undoing"
	completed phase = "completed"
	cancelled phase = "cancelled"
)

// flow is the state of one order.
type flow struct {
	Order  Order  `json:"order"`
	Phase  phase  `json:"phase"`
	Part   int    `json:"part"` // the part whose reply the flow waits for
	Reason string `json:"reason,omitempty"`
}

// turn is what can happen to a flow.
type turn int

const (
	done turn = iota
	refused
	undone
	overdue // the order's time is over
)

// next returns the flow after a turn of part i. It reports false for a turn that
// the flow does not wait for, such as a reply after the order's time was over.
func (f flow) next(t turn, i int, reason string) (flow, bool) {
	switch {
	case t == overdue && f.Phase == doing:
		// The part that has not replied may have been done or not. It is undone first.
		f.Phase, f.Reason = undoing, reason
	case i != f.Part:
		return f, false
	case t == done && f.Phase == doing:
		f.Part++
	case t == refused && f.Phase == doing:
		f.Phase, f.Reason = undoing, reason
		f.Part-- // what was refused needs no undoing
	case t == undone && f.Phase == undoing:
		f.Part--
	default:
		return f, false
	}
	switch {
	case f.Part == len(parts):
		f.Phase = completed
	case f.Part < 0:
		f.Phase = cancelled
	}
	return f, true
}

// says returns the event that a flow emits when it gets to where it is: the command to
// the next service, or how the order has ended.
func (f flow) says(order event.Key) event.Draft {
	switch f.Phase {
	case doing:
		return parts[f.Part].do.New(order, f.Order)
	case undoing:
		return parts[f.Part].undo.New(order, f.Order)
	case completed:
		return orderCompleted.New(order, Reply{})
	default:
		return orderCancelled.New(order, Reply{f.Reason})
	}
}

// ended reports whether nothing more will happen.
func (f flow) ended() bool { return f.Phase == completed || f.Phase == cancelled }
