package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// statusReserved is a reservation whose items are set aside.
const statusReserved = "reserved"

// checkStock: pieces neither appear nor vanish; those set aside are those of
// reservations under way, and those that have left are those of confirmed orders.
func (c *checker) checkStock() {
	sold, held := map[string]int64{}, map[string]int64{} // pieces by SKU
	for _, o := range c.records {
		if o.Status == statusConfirmed {
			count(sold, o.Items)
		}
	}
	for _, r := range c.Reservations {
		if r.Status == statusReserved {
			count(held, r.Items)
		}
		if _, known := c.records[r.Order]; !known && (r.Status == statusReserved || r.Status == statusSettled) {
			c.report(StockKept, r.Order, "pieces reserved for orders that exist only", fmt.Sprintf("%v %s", r.Items, r.Status))
		}
	}
	for _, s := range c.Stock {
		sum := s.Available + s.Held + s.Reserved
		if sum != s.Initial || min(s.Available, s.Held, s.Reserved) < 0 {
			c.report(StockKept, "", fmt.Sprintf("%d of %s, available, held and reserved together", s.Initial, s.SKU),
				fmt.Sprintf("%d: %d available, %d held, %d reserved", sum, s.Available, s.Held, s.Reserved))
		}
		if s.Held != held[s.SKU] {
			c.report(StockKept, "", fmt.Sprintf("%d of %s held, as reservations say", held[s.SKU], s.SKU), fmt.Sprint(s.Held))
		}
		if s.Reserved != sold[s.SKU] {
			c.report(StockKept, "", fmt.Sprintf("%d of %s reserved, as confirmed orders say", sold[s.SKU], s.SKU), fmt.Sprint(s.Reserved))
		}
		delete(held, s.SKU)
		delete(sold, s.SKU)
	}
	c.checkMissing(held, "held, as reservations say")
	c.checkMissing(sold, "reserved, as confirmed orders say")
}

func count(pieces map[string]int64, items []Item) {
	for _, item := range items {
		pieces[item.SKU] += item.Quantity
	}
}

// checkMissing reports the pieces of SKUs that are not in the inventory.
func (c *checker) checkMissing(pieces map[string]int64, where string) {
	for _, sku := range slices.Sorted(maps.Keys(pieces)) {
		c.report(StockKept, "", fmt.Sprintf("%d of %s %s", pieces[sku], sku, where), "no such SKU in the inventory")
	}
}

// checkReservation: the inventory's idea of an order fits where the order is:
// pieces are set aside for orders under way only, they have left with confirmed
// ones only, and they are those that were ordered.
func (c *checker) checkReservation(id string) {
	o, r := c.records[id], c.reservations[id]
	reserved, settled := r.Status == statusReserved, r.Status == statusSettled
	switch {
	case o.Status == statusConfirmed && !settled:
		c.report(StockKept, id, "items settled for the confirmed order", "reservation "+cmp.Or(r.Status, "none"))
	case o.Status != statusConfirmed && settled:
		c.report(StockKept, id, "nothing settled for an order that is not confirmed", "reservation "+r.Status)
	case ended(o) && reserved:
		c.report(StockKept, id, "nothing held for the "+o.Status+" order", fmt.Sprintf("%v held", r.Items))
	case (reserved || settled) && !slices.Equal(sorted(r.Items), sorted(o.Items)):
		c.report(StockKept, id, fmt.Sprintf("items %v %s", o.Items, r.Status), fmt.Sprint(r.Items))
	}
}

func sorted(items []Item) []Item {
	return slices.SortedFunc(slices.Values(items), func(a, b Item) int { return strings.Compare(a.SKU, b.SKU) })
}
