package inventory

import (
	"fmt"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

// Status is where an order stands in the inventory.
type Status string

// The statuses. An order that the inventory does not know has the empty one.
const (
	Reserved Status = "reserved" // all items are held
	Rejected Status = "rejected" // no item is held, and none will be
	Released Status = "released" // the order is cancelled: no item is held, and none will be
	Settled  Status = "settled"  // the order is confirmed: the items have left the stock
)

// Order is the document "order-<id>":
//
//	{"order_id":"ord-1","status":"reserved","items":[{"sku":"widget","quantity":2}]}
type Order struct {
	ID     string `json:"order_id"`
	Status Status `json:"status"`
	// Items are the items that were paid for. It is empty until the payment has come.
	Items []events.Item `json:"items,omitempty"`
}

// Stock is the document "sku-<sku>". It counts pieces:
//
//	{"sku":"widget","initial":1000,"available":990,"held":4,"reserved":6}
type Stock struct {
	SKU       string `json:"sku"`
	Initial   int64  `json:"initial"`
	Available int64  `json:"available"`
	Held      int64  `json:"held"`     // set aside for orders with status reserved
	Reserved  int64  `json:"reserved"` // have left the stock with confirmed orders
}

// verdict is the decision on an event: the new documents and the events to emit. The
// zero verdict changes nothing.
type verdict struct {
	order Order
	stock []Stock // one for each item of the order; nil if the stock does not change
	emits []event.Draft
}

// onCaptured holds all items of a paid order. If one is out of stock, or the order was
// cancelled before, it holds none and rejects the order.
func onCaptured(o Order, items []events.Item, stock []Stock) verdict {
	if len(o.Items) > 0 {
		return verdict{} // decided before: this is a second payment of the order, with another id
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

// onCancel releases the held items. A settled order stays as it is: the order service
// requests no cancellation of a confirmed order.
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

// onConfirmed takes the held items out of the stock.
func onConfirmed(o Order, stock []Stock) (verdict, error) {
	switch o.Status {
	case Reserved:
	case Rejected, Released, Settled:
		return verdict{}, nil
	default: // inventory.reserved.v1 causes order.confirmed.v1, so the order has to be known
		return verdict{}, fmt.Errorf("%w: %s", ErrNotReserved, o.ID)
	}
	left, short := moved(o.Items, stock, Stock.settle)
	if short != "" {
		return verdict{}, fmt.Errorf("%w: order %s: %s", ErrNotHeld, o.ID, short)
	}
	o.Status = Settled
	return verdict{order: o, stock: left}, nil
}

// moved applies move to the stock of each item. If a SKU has too few pieces for it,
// short is the first such SKU, and next is nil.
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

// hold moves pieces from available to held. It returns false if there are too few, as
// release and settle do.
func (s Stock) hold(pieces int64) (Stock, bool) {
	ok := s.Available >= pieces
	s.Available -= pieces
	s.Held += pieces
	return s, ok
}

// release moves pieces from held to available.
func (s Stock) release(pieces int64) (Stock, bool) {
	ok := s.Held >= pieces
	s.Held -= pieces
	s.Available += pieces
	return s, ok
}

// settle moves pieces from held to reserved.
func (s Stock) settle(pieces int64) (Stock, bool) {
	ok := s.Held >= pieces
	s.Held -= pieces
	s.Reserved += pieces
	return s, ok
}
