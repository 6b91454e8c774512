package audit

import "time"

// Evidence is what the audit judges.
type Evidence struct {
	// Expected are the ids of the orders that were accepted (answered with
	// 202). Nil when nobody kept them: then the records count as expected.
	Expected []string
	// Orders, Outbox and Inbox are the order service's tables.
	Orders []Order
	Outbox []Row
	Inbox  []Mark
	// Events are the decoded events of the stream, oldest first, by what they
	// are about. A copy stored twice is two events of one EventKey.
	Events map[string][]Event
	// Undecodable are messages on event subjects that are no events.
	Undecodable []Message
	// Charges are the gateway's books.
	Charges []Charge
	// Stock is the inventory, a line a SKU, and Reservations a line an order.
	Stock        []Stock
	Reservations []Reservation
	// Letters are the dead letters that are in the queue.
	Letters []Letter
}

// Order is an order as its service keeps it.
type Order struct {
	ID       string
	Status   string
	Currency string
	Total    int64 // minor units
	Items    []Item
}

// Row is one message in the outbox.
type Row struct {
	ID        int64
	MessageID string // of an event, its event key
	Subject   string
	Event     bool // an event, not a timer
	Order     string
	Status    string
	Attempts  int
}

// Mark is what the inbox says of one event.
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

// Stock is one SKU in the inventory, in pieces.
type Stock struct {
	SKU string
	// Initial is how many there were in the beginning, Available how many can
	// be had now, Held how many are set aside for orders under way, Reserved
	// how many have left with confirmed orders.
	Initial, Available, Held, Reserved int64
}

// Reservation is what the inventory knows of one order. Its items are held
// while it is reserved, and have left the stock once it is settled.
type Reservation struct {
	Order  string
	Status string
	Items  []Item
}

// Letter is one dead letter.
type Letter struct {
	ID       string
	Consumer string
	Reason   string
	EventKey string
	Order    string // what the event is about, as far as it can be told
}
