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

// statusSettled is a reservation whose items have left the stock for good.
const statusSettled = "settled"

// rule says what may cause an event of a type, and what must follow from it.
type rule struct {
	// causes are the types that may cause it; none for what begins a saga or
	// comes from outside.
	causes []string
	// follows are the types of which exactly one follows; none for an end.
	follows []string
}

// rules is the choreography as declared.
var rules = map[string]rule{
	placed:          {nil, []string{captured, declined}},
	cancelRequested: {nil, []string{released}},
	deadline:        {nil, []string{released}},
	captured:        {[]string{placed}, []string{reserved, rejected}},
	declined:        {[]string{placed}, []string{cancelled}},
	reserved:        {[]string{captured}, []string{confirmed}},
	rejected:        {[]string{captured}, []string{refunded}},
	released:        {[]string{cancelRequested, deadline}, []string{refunded}},
	refunded:        {[]string{rejected, released}, []string{cancelled}},
	confirmed:       {[]string{reserved}, nil},
	cancelled:       {[]string{declined, refunded}, nil},
}
