package audit

import "time"

// Names of the invariants.
const (
	Final      = "final"      // every order ended, or a dead letter explains why not
	Stored     = "stored"     // every accepted order is in the stream, and none else
	Outbox     = "outbox"     // nothing waits in the outbox, and what was published is in the stream
	Inbox      = "inbox"      // every event that was taken up has come to an end
	Money      = "money"      // charged - refunded is the total if confirmed, else 0; one charge an order
	StockKept  = "stock"      // pieces are conserved, and reserved exactly for confirmed orders
	Path       = "path"       // events of an order follow one another as declared, each once
	Causation  = "causation"  // every event's cause is there
	FollowUp   = "follow-up"  // what must follow from an event did
	Accounting = "accounting" // every event belongs to an order or lies in the dead letters
)

// Violation is one broken invariant.
type Violation struct {
	Invariant string `json:"invariant"`
	// Order the violation is about; empty when it is not about one.
	Order string `json:"order,omitempty"`
	// Expected and Found say what is wrong.
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

// String is the violation in one line.
func (v Violation) String() string {
	s := v.Invariant
	if v.Order != "" {
		s += " " + v.Order
	}
	return s + ": expected " + v.Expected + ", found " + v.Found
}

// Report is what an audit found.
type Report struct {
	OK         bool        `json:"ok"`
	Violations []Violation `json:"violations"`
	// Orders that exist, by how they ended. Unfinished ones wait in the dead letters.
	Orders     int `json:"orders"`
	Confirmed  int `json:"confirmed"`
	Cancelled  int `json:"cancelled"`
	Unfinished int `json:"unfinished"`
	// Events is how many events the stream holds, without Copies of events
	// that are stored more than once.
	Events int `json:"events"`
	Copies int `json:"copies"`
	// CopiesSuppressed had no effect of their own.
	CopiesSuppressed int `json:"copies_suppressed"`
	Undecodable      int `json:"undecodable"` // messages that are no events
	DeadLetters      int `json:"dead_letters"`
	// Outcomes is each order's status.
	Outcomes map[string]string `json:"-"`
	// Latencies are from an order's first event to its last, of final orders, ascending.
	Latencies []time.Duration `json:"-"`
}
