package inventory

import (
	"fmt"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Status is where an order stands in the inventory.
type Status string

// The statuses; the empty one is an order never heard of.
const (
	Reserved Status = "reserved" // all items are held
	Rejected Status = "rejected" // none are, and none will be
	Released Status = "released" // cancelled: none are, and none will be
	Settled  Status = "settled"  // confirmed: the items have left the stock
)

// Order is the document "order-<id>":
//
//	{"order_id":"ord-1","status":"reserved","items":[{"sku":"widget","quantity":2}]}
type Order struct {
	ID     string `json:"order_id"`
	Status Status `json:"status"`
	// Items are those that were paid for; none while no payment has come.
	// They are held while the order is reserved.
	Items []events.Item `json:"items,omitempty"`
}

// Stock is the document "sku-<sku>", in pieces:
//
//	{"sku":"widget","initial":1000,"available":990,"held":4,"reserved":6}
type Stock struct {
	SKU       string `json:"sku"`
	Initial   int64  `json:"initial"`
	Available int64  `json:"available"`
	Held      int64  `json:"held"`     // set aside for orders under way
	Reserved  int64  `json:"reserved"` // left with confirmed orders
}

// verdict is what an event makes of an order: the documents as they are from
// now on, and what others are told. The zero verdict changes nothing.
type verdict struct {
	order Order
	stock []Stock // of the order's items, one each; nil if it stays
	emits []event.Draft
}

// onCaptured reserves the items of a paid order, or none of them when one is
// short. An order cancelled before stays so.
func onCaptured(o Order, items []events.Item, stock []Stock) verdict {
	if len(o.Items) > 0 {
		return verdict{} // decided before: this event is a second start
	}
	o.Items = items
	if o.Status == Released {
		return rejected(o, "order cancelled")
	}
	held, short := moved(items, stock, Stock.hold)
	if short != "" {
		o.Status = Rejected
		return rejected(o, "out of stock: "+short)
	}
	o.Status = Reserved
	return verdict{o, held, []event.Draft{events.InventoryReserved.New(event.Key(o.ID), events.Reserved{OrderID: o.ID, Items: items})}}
}

func rejected(o Order, reason string) verdict {
	return verdict{order: o, emits: []event.Draft{
		events.InventoryRejected.New(event.Key(o.ID), events.Rejected{OrderID: o.ID, Reason: reason}),
	}}
}

// onCancel gives back what is held. The order service asks only while an order
// is not confirmed, so a settled one is left alone.
func onCancel(o Order, stock []Stock) (verdict, error) {
	if o.Status == Released || o.Status == Settled {
		return verdict{}, nil
	}
	var free []Stock
	released := events.Released{OrderID: o.ID}
	if o.Status == Reserved {
		var short string
		if free, short = moved(o.Items, stock, Stock.release); short != "" {
			return verdict{}, fmt.Errorf("%w: order %s: %s", ErrNotHeld, o.ID, short)
		}
		released.Items = o.Items
	}
	o.Status = Released
	return verdict{o, free, []event.Draft{events.InventoryReleased.New(event.Key(o.ID), released)}}, nil
}

// onConfirmed lets the items leave the stock.
func onConfirmed(o Order, stock []Stock) (verdict, error) {
	switch o.Status {
	case Reserved:
	case Rejected, Released, Settled:
		return verdict{}, nil
	default: // a confirmation follows from the reservation, so that must be there
		return verdict{}, fmt.Errorf("%w: %s", ErrNotReserved, o.ID)
	}
	left, short := moved(o.Items, stock, Stock.settle)
	if short != "" {
		return verdict{}, fmt.Errorf("%w: order %s: %s", ErrNotHeld, o.ID, short)
	}
	o.Status = Settled
	return verdict{order: o, stock: left}, nil
}

// moved makes one move with the pieces of each item; short names the first SKU
// that has too few for it.
func moved(items []events.Item, stock []Stock, move func(s Stock, pieces int64) (Stock, bool)) (next []Stock, short string) {
	next = make([]Stock, len(items))
	for i, item := range items {
		var ok bool
		if next[i], ok = move(stock[i], item.Quantity); !ok {
			return nil, item.SKU
		}
	}
	return next, ""
}

// hold sets pieces aside.
func (s Stock) hold(pieces int64) (Stock, bool) {
	ok := s.Available >= pieces
	s.Available -= pieces
	s.Held += pieces
	return s, ok
}

// release gives pieces back that were held.
func (s Stock) release(pieces int64) (Stock, bool) {
	ok := s.Held >= pieces
	s.Held -= pieces
	s.Available += pieces
	return s, ok
}

// settle lets pieces that were held leave the stock.
func (s Stock) settle(pieces int64) (Stock, bool) {
	ok := s.Held >= pieces
	s.Held -= pieces
	s.Reserved += pieces
	return s, ok
}
