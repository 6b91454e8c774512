package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// statusReserved is the status of a reservation whose items are set aside.
const statusReserved = "reserved"

// checkStock: the number of pieces of each SKU does not change. The held ones are those
// of reservations with status reserved. The reserved ones are those of confirmed orders.
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
			c.report(StockKept, r.Order, "no reservation for an order that does not exist", fmt.Sprintf("%v %s", r.Items, r.Status))
		}
	}
	for _, s := range c.Stock {
		sum := s.Available + s.Held + s.Reserved
		if sum != s.Initial || min(s.Available, s.Held, s.Reserved) < 0 {
			c.report(StockKept, "", fmt.Sprintf("%d of %s as the sum of available, held and reserved, none of them negative", s.Initial, s.SKU),
				fmt.Sprintf("%d: %d available, %d held, %d reserved", sum, s.Available, s.Held, s.Reserved))
		}
		if s.Held != held[s.SKU] {
			c.report(StockKept, "", fmt.Sprintf("%d of %s held, as in the reservations", held[s.SKU], s.SKU), fmt.Sprint(s.Held))
		}
		if s.Reserved != sold[s.SKU] {
			c.report(StockKept, "", fmt.Sprintf("%d of %s reserved, as in the confirmed orders", sold[s.SKU], s.SKU), fmt.Sprint(s.Reserved))
		}
		delete(held, s.SKU)
		delete(sold, s.SKU)
	}
	c.checkMissing(held, "held, as in the reservations")
	c.checkMissing(sold, "reserved, as in the confirmed orders")
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

// checkReservation: the reservation fits the status of its order. Items are held only
// for an order that has not ended, and settled only for a confirmed one. They are
// the items that were ordered.
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
