package order

import (
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Status is the state of an order. It is empty for an order that does not exist.
type Status string

// The statuses. An order with one of the last two is final.
const (
	Placed     Status = "placed"     // accepted, not paid
	Paid       Status = "paid"       // the customer was charged
	Cancelling Status = "cancelling" // its customer or its deadline asked for it; refund and release are under way
	Confirmed  Status = "confirmed"  // paid, and all items are reserved
	Cancelled  Status = "cancelled"  // refunded and released, as far as there was anything
)

// statuses holds every status of an order that exists.
var statuses = [...]Status{Placed, Paid, Cancelling, Confirmed, Cancelled}

// Order is a row of the table orders.
type Order struct {
	ID         string
	Status     Status
	CustomerID string
	Currency   string
	Total      int64 // minor units
	Items      []events.Item
	// Reason says why the order is cancelled, for people.
	Reason string
	// Created is when the order was placed, Updated when its status last changed.
	// Both are whole milliseconds, by the clock of the process that wrote them.
	Created, Updated time.Time
	// Instance is random. It tells the order from an earlier one with the same id,
	// whose row was deleted.
	Instance string
	// Request is the id of the request that placed the order (idempotency.ID).
	Request string
}

func (o Order) key() event.Key { return event.Key(o.ID) }

// eventID is the id of an event about the order that no other event has caused:
// order.placed.v1, and order.cancel_requested.v1 unless the timer caused it.
func (o Order) eventID(what string) string { return o.ID + "." + o.Instance + "." + what }

func (o Order) money() events.Money { return events.Money{Amount: o.Total, Currency: o.Currency} }

// orderID makes an order's id from the id of the request that places it: 80 bits of it,
// so that two requests never have the same.
func orderID(request string) string { return "ord-" + request[:16] }

// now is the time in the form in which rows hold it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
