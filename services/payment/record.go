package payment

import (
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Status is where an order's payment stands.
type Status string

// The statuses. An order has the empty one until the outcome of its charge is
// known. Declined, Refunded and Cancelled are final.
const (
	Captured  Status = "captured"
	Declined  Status = "declined"
	Refunded  Status = "refunded"
	Cancelled Status = "cancelled" // cancelled before anything was charged; nothing will be
)

// Record is the document of one order in the bucket, under its id:
//
//	{"order_id":"ord-1","status":"refunded","charge_id":"ch-1","refund_id":"re-1",
//	 "amount":2500,"currency":"EUR","steps":{…}}
type Record struct {
	OrderID  string `json:"order_id"`
	Status   Status `json:"status"`
	ChargeID string `json:"charge_id,omitempty"`
	RefundID string `json:"refund_id,omitempty"`
	// Amount is what was charged in minor units, also after the refund; 0 when
	// declined or cancelled.
	Amount int64 `json:"amount"`
	// Currency is ISO 4217; "XXX" (no currency) when cancelled.
	Currency string `json:"currency"`
	// Emitted are the events emitted in answer to each event about the order.
	Emitted Emitted `json:"steps,omitempty"`
}

// noCurrency is ISO 4217's code for transactions without a currency.
const noCurrency = "XXX"

// wantsCharge says whether a placed order is still to be charged.
func wantsCharge(r Record) bool { return r.Status == "" }

// onCharge returns what follows from the gateway's answer to a charge. Nothing
// follows from a voided one: the handler that voided it writes the record.
func onCharge(r Record, p events.Placed, c charge) (Record, []event.Draft) {
	switch {
	case !wantsCharge(r) || c.result == chargeVoided:
		return r, nil
	case c.result == chargeDeclined:
		r.Status, r.Currency = Declined, p.Total.Currency
		return r, []event.Draft{events.PaymentDeclined.New(event.Key(p.OrderID), events.Declined{OrderID: p.OrderID, Reason: c.Reason})}
	default:
		r.Status, r.ChargeID, r.Amount, r.Currency = Captured, c.ChargeID, p.Total.Amount, p.Total.Currency
		return r, []event.Draft{events.PaymentCaptured.New(event.Key(p.OrderID), events.Captured{
			OrderID: p.OrderID, ChargeID: c.ChargeID, Amount: p.Total, Items: p.Items,
		})}
	}
}

// wantsVoid says whether the charge of a cancelled order is still to be voided. It
// is if the outcome of the charge is unknown, for the gateway may have charged.
func wantsVoid(r Record) bool { return r.Status == "" || r.Status == Captured }

// onVoid returns what follows from the gateway's answer to a void.
func onVoid(r Record, v void, reason string) (Record, []event.Draft) {
	if !wantsVoid(r) {
		return r, nil
	}
	r.Status, r.ChargeID, r.RefundID, r.Amount, r.Currency = Refunded, v.ChargeID, v.RefundID, v.Amount, v.Currency
	if v.ChargeID == "" {
		r.Status, r.Amount, r.Currency = Cancelled, 0, noCurrency
	}
	return r, []event.Draft{events.PaymentRefunded.New(event.Key(r.OrderID), events.Refunded{
		OrderID: r.OrderID, RefundID: r.RefundID, Amount: events.Money{Amount: r.Amount, Currency: r.Currency},
		Reason: reason,
	})}
}
