package main

import "github.com/farandole/farandole/event"

// Order is what a customer has ordered. The commands carry it to the services.
type Order struct {
	SKU   string `json:"sku"`
	Cents int64  `json:"cents"`
}

// Reply is the data of every other event. Reason says why something was refused or
// cancelled.
type Reply struct {
	Reason string `json:"reason,omitempty"`
}

// The key of all events is the order's id.
var (
	orderPlaced    = event.Define[Order]("order.placed.v1")
	orderOverdue   = event.Define[Reply]("order.overdue.v1")
	orderCompleted = event.Define[Reply]("order.completed.v1")
	orderCancelled = event.Define[Reply]("order.cancelled.v1")

	chargePayment   = event.Define[Order]("payment.charge.v1")
	paymentCharged  = event.Define[Reply]("payment.charged.v1")
	paymentRefused  = event.Define[Reply]("payment.refused.v1")
	refundPayment   = event.Define[Order]("payment.refund.v1")
	paymentRefunded = event.Define[Reply]("payment.refunded.v1")

	reserveItems  = event.Define[Order]("inventory.reserve.v1")
	itemsReserved = event.Define[Reply]("inventory.reserved.v1")
	itemsRefused  = event.Define[Reply]("inventory.refused.v1")
	releaseItems  = event.Define[Order]("inventory.release.v1")
	itemsReleased = event.Define[Reply]("inventory.released.v1")

	shipParcel     = event.Define[Order]("shipping.ship.v1")
	parcelShipped  = event.Define[Reply]("shipping.shipped.v1")
	parcelRefused  = event.Define[Reply]("shipping.refused.v1")
	recallParcel   = event.Define[Order]("shipping.recall.v1")
	parcelRecalled = event.Define[Reply]("shipping.recalled.v1")
)
