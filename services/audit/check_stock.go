package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// checkStock: pieces neither appear nor vanish, and those that have left are
// those of confirmed orders.
func (c *checker) checkStock() {
	sold := map[string]int64{} // pieces of confirmed orders by SKU
	for _, o := range c.records {
		if o.Status != statusConfirmed {
			continue
		}
		for _, item := range o.Items {
			sold[item.SKU] += item.Quantity
		}
	}
	for _, s := range c.Stock {
		sum := s.Available + s.Reserved
		for _, n := range s.Holds {
			sum += n
		}
		if sum != s.Initial || s.Available < 0 {
			c.report(StockKept, "", fmt.Sprintf("%d of %s, available, held and reserved together", s.Initial, s.SKU),
				fmt.Sprintf("%d, of which %d available", sum, s.Available))
		}
		if s.Reserved != sold[s.SKU] {
			c.report(StockKept, "", fmt.Sprintf("%d of %s reserved, as confirmed orders say", sold[s.SKU], s.SKU), fmt.Sprint(s.Reserved))
		}
		delete(sold, s.SKU)
		for _, id := range slices.Sorted(maps.Keys(s.Holds)) {
			c.checkHold(s.SKU, id, s.Holds[id])
		}
	}
	for _, sku := range slices.Sorted(maps.Keys(sold)) {
		c.report(StockKept, "", fmt.Sprintf("%d of %s reserved, as confirmed orders say", sold[sku], sku), "no such SKU in the inventory")
	}
}

// checkHold: pieces are held for orders under way only, as many as were ordered.
func (c *checker) checkHold(sku, id string, held int64) {
	o, known := c.records[id]
	found := fmt.Sprintf("%d of %s held", held, sku)
	var ordered int64
	for _, item := range o.Items {
		if item.SKU == sku {
			ordered += item.Quantity
		}
	}
	switch {
	case !known:
		c.report(StockKept, id, "pieces held for orders that exist only", found)
	case ended(o):
		c.report(StockKept, id, "nothing held for the "+o.Status+" order", found)
	case held != ordered:
		c.report(StockKept, id, fmt.Sprintf("%d of %s held", ordered, sku), found)
	}
}

// checkReservation: the inventory's idea of an order fits the order's end.
func (c *checker) checkReservation(id string) {
	o, r := c.records[id], c.reservations[id]
	settled := r.Status == statusSettled
	switch {
	case o.Status == statusConfirmed && !settled:
		c.report(StockKept, id, "items settled for the confirmed order", "reservation "+cmp.Or(r.Status, "none"))
	case o.Status != statusConfirmed && settled:
		c.report(StockKept, id, "nothing settled for an order that is not confirmed", "reservation "+r.Status)
	case settled && !slices.Equal(sorted(r.Items), sorted(o.Items)):
		c.report(StockKept, id, fmt.Sprintf("items %v", o.Items), fmt.Sprint(r.Items))
	}
}

func sorted(items []Item) []Item {
	return slices.SortedFunc(slices.Values(items), func(a, b Item) int { return strings.Compare(a.SKU, b.SKU) })
}
