package payment

import (
	"encoding/json"
	"testing"

	"github.com/farandole/farandole/services/events"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	order := events.Placed{
		OrderID: "ord-1", CustomerID: "anna", Items: []events.Item{{SKU: "widget", Quantity: 1}},
		Total: events.Money{Amount: 2500, Currency: "EUR"},
	}
	captured := charge{result: chargeCaptured, ChargeID: "ch-1"}
	refunded := void{RefundID: "re-1", ChargeID: "ch-1", Amount: 2500, Currency: "EUR"}
	for _, tc := range []struct {
		name  string
		from  Status
		react func(r Record) (Record, []string)
		to    Status
		emits string // type and data, "" for nothing
	}{
		{"charged", "", charged(order, captured), Captured, `payment.captured.v1 {"order_id":"ord-1","charge_id":"ch-1","amount":{"amount":2500,"currency":"EUR"},"items":[{"sku":"widget","quantity":1}]}`},
		{"declined", "", charged(order, charge{result: chargeDeclined, Reason: "no funds"}), Declined, `payment.declined.v1 {"order_id":"ord-1","reason":"no funds"}`},
		{"charge was voided before", "", charged(order, charge{result: chargeVoided}), "", ""},
		{"second order after the capture", Captured, charged(order, captured), Captured, ""},
		{"second order after the decline", Declined, charged(order, captured), Declined, ""},
		{"charge overtaken by its refund", Refunded, charged(order, captured), Refunded, ""},
		{"charge overtaken by the cancellation", Cancelled, charged(order, captured), Cancelled, ""},

		{"refund", Captured, voided(refunded), Refunded, `payment.refunded.v1 {"order_id":"ord-1","refund_id":"re-1","amount":{"amount":2500,"currency":"EUR"},"reason":"out of stock: widget"}`},
		{"refund of a charge not recorded", "", voided(refunded), Refunded, `payment.refunded.v1 {"order_id":"ord-1","refund_id":"re-1","amount":{"amount":2500,"currency":"EUR"},"reason":"out of stock: widget"}`},
		{"cancelled before the charge", "", voided(void{}), Cancelled, `payment.refunded.v1 {"order_id":"ord-1","amount":{"amount":0,"currency":"XXX"},"reason":"out of stock: widget"}`},
		{"second refund", Refunded, voided(refunded), Refunded, ""},
		{"second cancellation", Cancelled, voided(void{}), Cancelled, ""},
		{"refund of a declined order", Declined, voided(void{}), Declined, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			next, emitted := tc.react(Record{OrderID: "ord-1", Status: tc.from})
			got := ""
			for _, e := range emitted {
				got += e
			}
			if next.Status != tc.to || got != tc.emits {
				t.Fatalf("got %q and %s\nwant %q and %s", next.Status, got, tc.to, tc.emits)
			}
		})
	}
}

func charged(p events.Placed, c charge) func(Record) (Record, []string) {
	return func(r Record) (Record, []string) {
		next, drafts := onCharge(r, p, c)
		var told []string
		for _, d := range drafts {
			told = append(told, string(d.Type)+" "+string(d.Data))
		}
		return next, told
	}
}

func voided(v void) func(Record) (Record, []string) {
	return func(r Record) (Record, []string) {
		next, drafts := onVoid(r, v, "out of stock: widget")
		var told []string
		for _, d := range drafts {
			told = append(told, string(d.Type)+" "+string(d.Data))
		}
		return next, told
	}
}

// The audit reads the records.
func TestRecordOnDisk(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(Record{OrderID: "ord-1", Status: Refunded, ChargeID: "ch-1", RefundID: "re-1", Amount: 2500, Currency: "EUR"})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"order_id":"ord-1","status":"refunded","charge_id":"ch-1","refund_id":"re-1","amount":2500,"currency":"EUR"}`; string(got) != want {
		t.Fatalf("got %s", got)
	}
}
