package events

import (
	"errors"
	"fmt"
	"math"

	"github.com/farandole/farandole/event"
)

// The event types of the order saga: first those of an order that is confirmed,
// then those of an order that is cancelled.
var (
	OrderPlaced          = event.Define[Placed]("order.placed.v1")
	PaymentCaptured      = event.Define[Captured]("payment.captured.v1")
	InventoryReserved    = event.Define[Reserved]("inventory.reserved.v1")
	OrderConfirmed       = event.Define[Confirmed]("order.confirmed.v1")
	PaymentDeclined      = event.Define[Declined]("payment.declined.v1")
	InventoryRejected    = event.Define[Rejected]("inventory.rejected.v1")
	OrderDeadline        = event.Define[Deadline]("order.deadline.v1")
	OrderCancelRequested = event.Define[CancelRequested]("order.cancel_requested.v1")
	InventoryReleased    = event.Define[Released]("inventory.released.v1")
	PaymentRefunded      = event.Define[Refunded]("payment.refunded.v1")
	OrderCancelled       = event.Define[Cancelled]("order.cancelled.v1")
)

// ErrInvalid is matched by every error that a Validate method returns.
var ErrInvalid = errors.New("events: invalid payload")

// Money is an amount in minor units of a currency.
type Money struct {
	Amount   int64  `json:"amount"`   // minor units: 2500 is 25.00 EUR, or 2500 JPY ([MinorDigits])
	Currency string `json:"currency"` // ISO 4217, as in "EUR"
}

// Item is one line of an order.
type Item struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// Placed says that a customer has ordered. The payment service charges the total.
type Placed struct {
	OrderID    string `json:"order_id"`
	CustomerID string `json:"customer_id"`
	Items      []Item `json:"items"`
	Total      Money  `json:"total"`
}

// Captured says that the customer has paid. It carries the items, so that the
// inventory service needs no other event about the order.
type Captured struct {
	OrderID  string `json:"order_id"`
	ChargeID string `json:"charge_id"`
	Amount   Money  `json:"amount"`
	Items    []Item `json:"items"`
}

// Declined says that the payment gateway has refused the customer's payment.
type Declined struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason"`
}

// Reserved says that all items are set aside for the order.
type Reserved struct {
	OrderID string `json:"order_id"`
	Items   []Item `json:"items"`
}

// Rejected says that at least one item is not in stock. Nothing is set aside.
type Rejected struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason"`
}

// Released says that nothing is set aside for the order any more.
type Released struct {
	OrderID string `json:"order_id"`
	Items   []Item `json:"items"` // what had been set aside; empty if nothing
}

// Refunded says that the customer has their money back.
type Refunded struct {
	OrderID  string `json:"order_id"`
	RefundID string `json:"refund_id,omitempty"`
	Amount   Money  `json:"amount"` // 0 when nothing had been charged
	Reason   string `json:"reason"` // why the order is cancelled
}

// Confirmed says that the order is paid, its items are set aside, and it will not
// change any more.
type Confirmed struct {
	OrderID string `json:"order_id"`
	Total   Money  `json:"total"`
}

// Deadline says that the time of an order is over. An order that is not final by
// then is cancelled.
type Deadline struct {
	OrderID string `json:"order_id"`
	// Instance tells the order from an earlier one with the same id, whose row
	// was deleted.
	Instance string `json:"instance"`
}

// CancelRequested asks that an order be cancelled before it is confirmed, because
// the customer wants it or its deadline has passed.
type CancelRequested struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason,omitempty"` // for people
}

// Cancelled says that the order is cancelled for good: the money is refunded and
// nothing is set aside.
type Cancelled struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason"`
}

// Limits of an order.
const (
	MaxItems    = 100
	MaxQuantity = 1000
)

// Validate checks what a customer may order.
func (p Placed) Validate() error {
	return errors.Join(present("order_id", p.OrderID), present("customer_id", p.CustomerID), p.Total.Validate(), ValidateItems(p.Items))
}

// Validate checks that the inventory service can act on it.
func (c Captured) Validate() error {
	return errors.Join(present("order_id", c.OrderID), present("charge_id", c.ChargeID), c.Amount.Validate(), ValidateItems(c.Items))
}

// Validate checks amount and currency.
func (m Money) Validate() error {
	var errs []error
	if m.Amount < 0 {
		errs = append(errs, fmt.Errorf("%w: amount %d is negative", ErrInvalid, m.Amount))
	}
	if _, known := MinorDigits(m.Currency); !known {
		errs = append(errs, fmt.Errorf("%w: currency %q: ISO 4217 has none of this code", ErrInvalid, m.Currency))
	}
	return errors.Join(errs...)
}

// ValidateItems checks the number of items, their SKUs and their quantities. No
// two items may have the same SKU.
func ValidateItems(items []Item) error {
	if len(items) == 0 || len(items) > MaxItems {
		return fmt.Errorf("%w: %d items: want 1 to %d", ErrInvalid, len(items), MaxItems)
	}
	var errs []error
	seen := map[string]bool{}
	for i, it := range items {
		if it.SKU == "" || seen[it.SKU] {
			errs = append(errs, fmt.Errorf("%w: item %d: sku %q is empty or repeated", ErrInvalid, i, it.SKU))
		}
		seen[it.SKU] = true
		if it.Quantity < 1 || it.Quantity > MaxQuantity {
			errs = append(errs, fmt.Errorf("%w: item %d: quantity %d: want 1 to %d", ErrInvalid, i, it.Quantity, MaxQuantity))
		}
	}
	return errors.Join(errs...)
}

func present(name, v string) error {
	if v == "" {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, name)
	}
	return nil
}

// Times returns m multiplied by n. ok is false when the product does not fit into
// an int64, or when m or n is negative.
func (m Money) Times(n int64) (product Money, ok bool) {
	if n < 0 || m.Amount < 0 || (n > 0 && m.Amount > math.MaxInt64/n) {
		return Money{}, false
	}
	return Money{Amount: m.Amount * n, Currency: m.Currency}, true
}

// Plus returns the sum of m and o. ok is false when the currencies differ or the
// sum does not fit into an int64.
func (m Money) Plus(o Money) (sum Money, ok bool) {
	if m.Currency != o.Currency || m.Amount > math.MaxInt64-o.Amount {
		return Money{}, false
	}
	return Money{Amount: m.Amount + o.Amount, Currency: m.Currency}, true
}
