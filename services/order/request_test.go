package order

import (
	"testing"

	"github.com/farandole/farandole/services/events"
)

func TestTotalsAreInTheMinorUnitOfTheCurrency(t *testing.T) {
	t.Parallel()
	for currency, want := range map[string]int64{
		"EUR": 2*2500 + 9950,
		"JPY": 2*25 + 100, // half a yen is rounded up
		"KWD": 2*25000 + 99500,
		"CLF": 2*250000 + 995000,
	} {
		r := placeRequest{CustomerID: "alice", Currency: currency, Items: []events.Item{{SKU: "widget", Quantity: 2}, {SKU: "gadget", Quantity: 1}}}
		if o, errs := r.order(); len(errs) > 0 || o.Total != want {
			t.Errorf("%s: total %d, %v; want %d", currency, o.Total, errs, want)
		}
	}
}
