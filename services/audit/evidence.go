package audit

import "time"

// Evidence is what the audit checks.
type Evidence struct {
	// Expected are the ids of the orders that were accepted (answered with 202). If
	// it is nil, all orders of the table count as accepted.
	Expected []string
	// Orders, Outbox and Inbox are the order service's tables.
	Orders []Order
	Outbox []Row
	Inbox  []Mark
	// Events are the decoded events of the stream, oldest first, by their key (the
	// order's id). An event that is stored twice is in it twice, with one EventKey.
	Events map[string][]Event
	// Undecodable are the messages on event subjects that cannot be decoded.
	Undecodable []Message
	// Charges are the gateway's books.
	Charges []Charge
	// Stock has one element a SKU of the inventory, Reservations one an order.
	Stock        []Stock
	Reservations []Reservation
	// Courses are what the consumers with pages have done, by their names: the inventory,
	// and payment with the partition ledger.
	Courses map[string]Course
	// Letters are the dead letters that are neither replayed nor discarded. Former are
	// those that were, as far as somebody knows of them.
	Letters []Letter
	Former  []Letter
	// Changes are the events of breakers, without copies. Attempts are the failed attempts
	// that marks tell of, or that a [Witness] has seen.
	Changes  []Change
	Attempts []Attempt
}

// Order is one row of the orders table.
type Order struct {
	ID       string
	Status   string
	Currency string
	Total    int64 // minor units
	Items    []Item
}

// Row is one row of the outbox.
type Row struct {
	ID        int64
	MessageID string // the event key, if it is an event
	Subject   string
	Event     bool // true for an event, false for a timer
	Order     string
	Status    string
	Attempts  int
}

// Mark is one row of the inbox: what a consumer has done with an event.
type Mark struct {
	Consumer string
	EventKey string
	State    string
}

// Item is one line of an order.
type Item struct {
	SKU      string
	Quantity int64
}

// Event is one stored event.
type Event struct {
	Sequence  uint64
	At        time.Time // when stored, by the server's clock
	EventKey  string
	ID        string
	Source    string
	Type      string
	Causation string // id of the causing event
}

// Message is a stored message that could not be decoded.
type Message struct {
	Sequence uint64
	Subject  string
	EventKey string
	Error    string
}

// Charge is one charge in the gateway's books.
type Charge struct {
	ID       string
	Order    string
	Currency string
	Amount   int64 // minor units
	Refunded int64 // minor units
}

// Stock is the number of pieces of one SKU in the inventory.
type Stock struct {
	SKU string
	// Initial is the number at the beginning. Available can be ordered now. Held are
	// set aside for orders that have not ended. Reserved have left the stock with
	// confirmed orders.
	Initial, Available, Held, Reserved int64
}

// Reservation is what the inventory has recorded for one order. Its items are held
// while its status is reserved. They have left the stock when it is settled.
type Reservation struct {
	Order  string
	Status string
	Items  []Item
}

// Course is in which order a consumer has come to the end of its events.
type Course struct {
	// Ended are the event keys on its pages, in the order in which the events have taken
	// effect. Resent are those of events that were sent to it again.
	Ended  []string
	Resent []string
}

// Letter is one dead letter.
type Letter struct {
	ID       string
	Consumer string
	Reason   string
	EventKey string
	Order    string // the event's key; empty if it cannot be decoded
	Class    string // the kind of the last failure
}

// Change is one event of a breaker (docs/contract.md, "Pauses").
type Change struct {
	Key    string `json:"-"`
	ID     string `json:"-"`
	Source string `json:"-"`
	Type   string `json:"-"`
	// Problem says why the data cannot be read; then what follows is empty.
	Problem string `json:"-"`

	Consumer string    `json:"consumer"`
	Breaker  string    `json:"breaker"`
	Until    time.Time `json:"until"`
	Forced   bool      `json:"forced"` // by an operator
	Opened   uint64    `json:"opened"`
	At       time.Time `json:"at"` // by the server's clock
	By       string    `json:"by"`
}

// Attempt is one failed attempt at an event.
type Attempt struct {
	Consumer string
	EventKey string
	At       time.Time // by the clock of the process that failed
	Class    string    // the kind of failure
	// Reason is that of the dead letter if the attempt was the last one.
	Reason string
	Error  string
}
