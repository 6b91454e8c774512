package inventory

import (
	"maps"
	"math"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/services/events"
)

// Status is where an order stands in the inventory.
type Status string

// The statuses; the empty one is an order never heard of.
const (
	Reserving Status = "reserving" // items are being held
	Reserved  Status = "reserved"  // all items are held
	Rejected  Status = "rejected"  // none are, and none will be
	Released  Status = "released"  // cancelled: none are, and none will be
	Settled   Status = "settled"   // confirmed: the items have left the stock
)

// Order is the document under "order-<id>":
//
//	{"order_id":"ord-1","status":"reserved","items":[{"sku":"widget","quantity":2}],"steps":{…}}
type Order struct {
	ID     string        `json:"order_id"`
	Status Status        `json:"status"`
	Items  []events.Item `json:"items,omitempty"`
	// Run is the number of the run that decided a reservation: the revision
	// with which it began, so a later run has a higher one.
	Run   uint64       `json:"run,omitempty"`
	Steps events.Steps `json:"steps,omitempty"`
}

// vain is the run before which all that runs hold for the order is held in
// vain: every run's once nothing will be reserved, that of those who were
// overtaken once one has decided, and nobody's before.
func (o Order) vain() uint64 {
	if o.Status == Rejected || o.Status == Released {
		return math.MaxUint64
	}
	return o.Run
}

// Stock is the document under "sku-<sku>", in pieces:
//
//	{"sku":"widget","initial":1000,"available":990,"reserved":6,"holds":{"ord-1":{"quantity":4,"run":17}}}
type Stock struct {
	SKU       string          `json:"sku"`
	Initial   int64           `json:"initial"`
	Available int64           `json:"available"`
	Reserved  int64           `json:"reserved"` // left with confirmed orders
	Holds     map[string]Hold `json:"holds,omitempty"`
}

// Hold is what a SKU sets aside for an order under way.
type Hold struct {
	Quantity int64 `json:"quantity"`
	// Run is the number of the run that holds it. It fences: a run that was
	// stalled and overtaken neither takes over the hold of the one that
	// overtook it, nor can what it held in vain be mistaken for it.
	Run uint64 `json:"run"`
}

// onCaptured decides an order whose items are all held, or one of which is
// short ("" when none is). An order cancelled before stays so.
func onCaptured(o Order, short string) (Order, []bus.Draft) {
	switch o.Status {
	case Released:
		return o, rejected(o.ID, "order cancelled")
	case Reserving:
		if short != "" {
			o.Status = Rejected
			return o, rejected(o.ID, "out of stock: "+short)
		}
		o.Status = Reserved
		return o, []bus.Draft{events.InventoryReserved.New(bus.Key(o.ID), events.Reserved{OrderID: o.ID, Items: o.Items})}
	case Reserved, Rejected, Settled:
	}
	return o, nil // decided before: this event is a second start
}

func rejected(id, reason string) []bus.Draft {
	return []bus.Draft{events.InventoryRejected.New(bus.Key(id), events.Rejected{OrderID: id, Reason: reason})}
}

// onCancel decides what is released. The order service asks only while an
// order is not confirmed, so a settled one is left alone.
func onCancel(o Order) (Order, []bus.Draft) {
	released := events.Released{OrderID: o.ID}
	switch o.Status {
	case Settled, Released:
		return o, nil
	case Reserved:
		o.Status, released.Items = Released, o.Items
	case Reserving, "":
		o.Status = Released
	case Rejected: // nothing was held
	}
	return o, []bus.Draft{events.InventoryReleased.New(bus.Key(o.ID), released)}
}

// onConfirmed lets the items leave the stock.
func onConfirmed(o Order) Order {
	if o.Status == Reserved {
		o.Status = Settled
	}
	return o
}

// hold sets quantity aside for an order, or takes over what an earlier run has
// set aside; ok is false when there is not enough.
func (s Stock) hold(order string, run uint64, quantity int64) (next Stock, ok bool) {
	held, there := s.Holds[order]
	switch {
	case !there && s.Available < quantity:
		return s, false
	case !there:
		held.Quantity = quantity
		s.Available -= quantity
	}
	held.Run = max(held.Run, run)
	s.Holds = maps.Clone(s.Holds)
	if s.Holds == nil {
		s.Holds = map[string]Hold{}
	}
	s.Holds[order] = held
	return s, true
}

// release gives back what runs before the given one hold for an order.
func (s Stock) release(order string, before uint64) (next Stock, changed bool) {
	held, there := s.Holds[order]
	if !there || held.Run >= before {
		return s, false
	}
	s.Available += held.Quantity
	s.Holds = without(s.Holds, order)
	return s, true
}

// settle lets what the deciding run holds for an order leave the stock.
func (s Stock) settle(order string, run uint64) (next Stock, changed bool) {
	held, there := s.Holds[order]
	if !there || held.Run != run {
		return s, false
	}
	s.Reserved += held.Quantity
	s.Holds = without(s.Holds, order)
	return s, true
}

func without(holds map[string]Hold, order string) map[string]Hold {
	holds = maps.Clone(holds)
	delete(holds, order)
	return holds
}
