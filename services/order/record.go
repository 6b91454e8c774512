package order

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/services/events"
)

// Bucket is the short name of the service's KV bucket.
const Bucket = "orders"

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

// Order is the document under the order's id:
//
//	{
//	  "order_id": "ord-…", "status": "confirmed", "reason": "",
//	  "customer_id": "alice", "currency": "EUR", "total": 5000,
//	  "items": [{"sku": "widget", "quantity": 2}],
//	  "updated": "2026-01-02T15:04:05Z", "instance": "…",
//	  "request": "…", "announced": true, "cancel_announced": false,
//	  "steps": {…}
//	}
type Order struct {
	ID         string        `json:"order_id"`
	Status     Status        `json:"status"`
	CustomerID string        `json:"customer_id"`
	Currency   string        `json:"currency"`
	Total      int64         `json:"total"` // minor units
	Items      []events.Item `json:"items"`
	// Reason is why the order is being cancelled or is cancelled, for people.
	Reason string `json:"reason"`
	// Updated is when the status last changed, for people: by the clock of
	// whichever process changed it.
	Updated time.Time `json:"updated"`
	// Instance is random: it tells the order from an earlier one of the same
	// id, whose record was deleted.
	Instance string `json:"instance,omitempty"`
	// Request identifies the content of the request that placed the order.
	Request string `json:"request"`
	// Announced says that order.placed is known to be stored.
	Announced bool `json:"announced"`
	// CancelAnnounced says that order.cancel_requested is known to be stored.
	CancelAnnounced bool         `json:"cancel_announced"`
	Steps           events.Steps `json:"steps,omitempty"`
}

// store is what the service needs of its bucket. Put is a compare-and-set: an
// error matching bus.ErrConflict means that somebody else wrote first.
type store interface {
	Get(ctx context.Context, key bus.Key) (Order, uint64, error)
	Put(ctx context.Context, key bus.Key, o Order, revision uint64) (uint64, error)
	Each(ctx context.Context, f func(token string, o Order, revision uint64) error) error
}

var _ store = (*bus.Bucket[Order])(nil)

func (o Order) key() bus.Key { return bus.Key(o.ID) }

// eventID is the id of an event that announces the order.
func (o Order) eventID(what string) string {
	if o.Instance == "" { // placed before there were instances
		return o.ID + "." + what
	}
	return o.ID + "." + o.Instance + "." + what
}

func (o Order) money() events.Money { return events.Money{Amount: o.Total, Currency: o.Currency} }

// idBytes are 80 bits, 16 characters of base32: no two keys of any shop meet.
const idBytes = 10

// idOf makes an order's id from the request's idempotency key.
func idOf(idempotencyKey string) string {
	sum := sha256.Sum256([]byte(idempotencyKey))
	return "ord-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:idBytes]))
}
