package audit

// Event types of the demo system (docs/contract.md).
const (
	placed          = "order.placed.v1"
	cancelRequested = "order.cancel_requested.v1"
	deadline        = "order.deadline.v1"
	confirmed       = "order.confirmed.v1"
	cancelled       = "order.cancelled.v1"
	captured        = "payment.captured.v1"
	declined        = "payment.declined.v1"
	refunded        = "payment.refunded.v1"
	reserved        = "inventory.reserved.v1"
	rejected        = "inventory.rejected.v1"
	released        = "inventory.released.v1"
)

// Statuses of an order that has ended.
const (
	statusConfirmed = "confirmed"
	statusCancelled = "cancelled"
)

// statusSettled is the status of a reservation whose items have left the stock for good.
const statusSettled = "settled"

// rule says what may cause an event of a type, and what must follow from it.
type rule struct {
	// causes are the types that may cause it; none for the event that begins a saga.
	causes []string
	// outside is true if it may also come from outside the system, without a cause.
	outside bool
	// follows are the types of which exactly one follows. It is empty for the last
	// event of a saga, and for a deadline, which may come too late.
	follows []string
}

// rules is the choreography of the demo system, as docs/contract.md describes it.
var rules = map[string]rule{
	placed:          {nil, true, []string{captured, declined}},
	deadline:        {[]string{placed}, false, nil},
	cancelRequested: {[]string{deadline}, true, []string{released}},
	captured:        {[]string{placed}, false, []string{reserved, rejected}},
	declined:        {[]string{placed}, false, []string{cancelled}},
	reserved:        {[]string{captured}, false, []string{confirmed}},
	rejected:        {[]string{captured}, false, []string{refunded}},
	released:        {[]string{cancelRequested}, false, []string{refunded}},
	refunded:        {[]string{rejected, released}, false, []string{cancelled}},
	confirmed:       {[]string{reserved}, false, nil},
	cancelled:       {[]string{declined, refunded}, false, nil},
}
