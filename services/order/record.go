package order

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Status is where an order stands. The empty one is an order never heard of.
type Status string

// The statuses. Confirmed and cancelled are final.
const (
	Placed     Status = "placed"     // accepted, not paid
	Paid       Status = "paid"       // the money is there
	Cancelling Status = "cancelling" // the customer wants out or its time is up, and it is being undone
	Confirmed  Status = "confirmed"  // paid and reserved
	Cancelled  Status = "cancelled"  // nothing is left of it
)

// statuses are all of them.
var statuses = [...]Status{Placed, Paid, Cancelling, Confirmed, Cancelled}

// Order is a row of the table orders.
type Order struct {
	ID         string
	Status     Status
	CustomerID string
	Currency   string
	Total      int64 // minor units
	Items      []events.Item
	// Reason is why the order is being cancelled or is cancelled, for people.
	Reason string
	// Created is when the order was placed, and Updated when its status last
	// changed, in milliseconds: by the clock of whichever process did it.
	Created, Updated time.Time
	// Instance is random: it tells the order from an earlier one of the same
	// id, whose row was deleted.
	Instance string
	// Request identifies the content of the request that placed the order.
	Request string
}

func (o Order) key() event.Key { return event.Key(o.ID) }

// eventID is the id of an event that tells of the order and has no cause.
func (o Order) eventID(what string) string { return o.ID + "." + o.Instance + "." + what }

func (o Order) money() events.Money { return events.Money{Amount: o.Total, Currency: o.Currency} }

// idBytes are 80 bits, 16 characters of base32: no two keys of any shop meet.
const idBytes = 10

// orderID makes an order's id from its customer and the request's idempotency
// key: a customer can neither guess nor block another one's keys. A customer id
// holds no NUL.
func orderID(customerID, idempotencyKey string) string {
	sum := sha256.Sum256([]byte(customerID + "\x00" + idempotencyKey))
	return "ord-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:idBytes]))
}

// now is the time as rows have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
