package audit

import "time"

// Names of the invariants.
const (
	Final      = "final"      // every accepted order has ended, or a dead letter explains why not
	Stored     = "stored"     // every order of the table is in the stream, and the other way round
	Outbox     = "outbox"     // no row waits in the outbox, and every published one is in the stream
	Inbox      = "inbox"      // every event that was claimed is done, discarded or parked
	Money      = "money"      // charged - refunded is the total if confirmed, else 0; one charge an order
	StockKept  = "stock"      // pieces are conserved, and reserved exactly for confirmed orders
	Path       = "path"       // the events of an order follow the rules, each type at most once
	Causation  = "causation"  // the cause of every event is in the stream
	FollowUp   = "follow-up"  // each event that must be followed by another caused exactly one
	Sequence   = "sequence"   // who has pages has handled the events of an order once each, as they are stored
	Accounting = "accounting" // every event belongs to an order or is in the dead letters
	Breaker    = "breaker"    // every event of a breaker has the source and the form of one
	Attempts   = "attempts"   // no attempt was spent while the breaker was not closed
	Outage     = "outage"     // no dead letter is there because the dependency was down
)

// Violation is one broken invariant.
type Violation struct {
	Invariant string `json:"invariant"`
	// Order is the id of the order; empty if the violation is not about one order.
	Order string `json:"order,omitempty"`
	// Expected and Found describe the violation: "one charge", "2: ch-1 of 500 EUR, ...".
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// String returns the violation in one line:
// "money ord-1: expected one charge, found 2: ch-1 of 500 EUR, ch-2 of 500 EUR".
func (v Violation) String() string {
	s := v.Invariant
	if v.Order != "" {
		s += " " + v.Order
	}
	return s + ": expected " + v.Expected + ", found " + v.Found
}

// Report is the result of an audit.
type Report struct {
	OK         bool        `json:"ok"`
	Violations []Violation `json:"violations"`
	// Orders counts the accepted and the recorded orders. Unfinished ones have not
	// ended; if OK, a dead letter or a parked row explains each of them.
	Orders     int `json:"orders"`
	Confirmed  int `json:"confirmed"`
	Cancelled  int `json:"cancelled"`
	Unfinished int `json:"unfinished"`
	// Events counts the different events in the stream. Copies counts how often one of
	// them is stored again.
	Events int `json:"events"`
	Copies int `json:"copies"`
	// CopiesSuppressed counts the copies that had no effect.
	CopiesSuppressed int `json:"copies_suppressed"`
	Undecodable      int `json:"undecodable"` // messages that cannot be decoded
	DeadLetters      int `json:"dead_letters"`
	// Outages is what became of the breaker of the gateway.
	Outages Outages `json:"outages"`
	// Outcomes is each order's status.
	Outcomes map[string]string `json:"-"`
	// Latencies are the times from an order's first event to its final one, of all
	// orders that have ended, ascending.
	Latencies []time.Duration `json:"-"`
}
