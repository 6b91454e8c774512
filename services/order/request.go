package order

import (
	"fmt"
	"net/http"

	"github.com/farandole/farandole/internal/web"
	"github.com/farandole/farandole/services/events"
)

// Limits of a request, in bytes.
const (
	maxBody       = 64 << 10
	maxCustomerID = 128
)

// placeRequest is the body of POST /orders.
type placeRequest struct {
	CustomerID string        `json:"customer_id"`
	Currency   string        `json:"currency"`
	Items      []events.Item `json:"items"`
}

// price is the catalogue. It returns hundredths of any currency: 2500 for 25.00.
func price(sku string) (int64, bool) {
	switch sku {
	case "widget":
		return 2500, true
	case "gadget":
		return 9950, true
	case "anvil":
		return 125000, true
	case "unicorn":
		return 999900, true
	default:
		return 0, false
	}
}

// minorUnits converts hundredths to the minor unit of a currency, which has the
// given number of digits. Half a unit is rounded up: 9950 hundredths are 100 JPY.
func minorUnits(hundredths int64, digits int) int64 {
	for ; digits > 2; digits-- {
		hundredths *= 10
	}
	if digits == 2 {
		return hundredths
	}
	return (hundredths + 50) / 100
}

// readOrder makes an order of a request, without an id. If the request is wrong, the
// problem document says why.
func readOrder(w http.ResponseWriter, r *http.Request) (Order, *web.Problem) {
	var request placeRequest
	if p := web.ReadJSON(w, r, maxBody, &request); p != nil {
		return Order{}, p
	}
	o, errs := request.order()
	if len(errs) > 0 {
		return Order{}, invalid(errs)
	}
	return o, nil
}

// customerRule tells people what validCustomer checks.
const customerRule = "must have 1 to 128 bytes, none of them NUL"

func validCustomer(id string) bool { return id != "" && len(id) <= maxCustomerID && storable(id) }

// order checks the request and adds up the total.
func (r placeRequest) order() (Order, []web.Fault) {
	var errs []web.Fault
	fail := func(pointer, format string, args ...any) {
		errs = append(errs, web.Fault{Pointer: "#/" + pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if !validCustomer(r.CustomerID) {
		fail("customer_id", "%s", customerRule)
	}
	digits, known := events.MinorDigits(r.Currency)
	if !known {
		fail("currency", "must be a currency of ISO 4217, as in EUR")
	}
	if len(r.Items) == 0 || len(r.Items) > events.MaxItems {
		fail("items", "must be 1 to %d", events.MaxItems)
		return Order{}, errs
	}
	total := events.Money{Currency: r.Currency}
	seen := map[string]bool{}
	for i, item := range r.Items {
		each, known := price(item.SKU)
		if !known {
			fail(fmt.Sprintf("items/%d/sku", i), "is not in the catalogue")
		}
		if seen[item.SKU] {
			fail(fmt.Sprintf("items/%d/sku", i), "is repeated")
		}
		seen[item.SKU] = true
		if item.Quantity < 1 || item.Quantity > events.MaxQuantity {
			fail(fmt.Sprintf("items/%d/quantity", i), "must be 1 to %d", events.MaxQuantity)
			continue
		}
		line, ok := events.Money{Amount: minorUnits(each, digits), Currency: r.Currency}.Times(item.Quantity)
		if ok {
			total, ok = total.Plus(line)
		}
		if !ok {
			fail("items", "total is too large")
			return Order{}, errs
		}
	}
	return Order{CustomerID: r.CustomerID, Currency: r.Currency, Total: total.Amount, Items: r.Items}, errs
}
