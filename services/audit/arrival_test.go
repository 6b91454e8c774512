package audit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/order"
	"github.com/farandole/farandole/services/payment"
	"github.com/farandole/farandole/topology"
)

// saga is one way in which an order can go, told by the events that services read.
type saga struct {
	name, customer, sku string
	cancelled           bool // its customer asks for it
	end                 string
	events              int
	// follow adds what the services emit to what the customer's requests have emitted.
	follow func(s *story)
}

var sagas = []saga{
	{"confirmed", "alice", "widget", false, "confirmed", 4, func(s *story) { s.confirm(s.reserve(s.capture())) }},
	{"out of stock", "alice", "unicorn", false, "cancelled", 4, func(s *story) { s.refund(s.reject(s.capture())) }},
	{"declined", "decline-alice", "widget", false, "cancelled", 2, func(s *story) { s.decline() }},
	{"cancelled", "alice", "widget", true, "cancelled", 5, func(s *story) { s.capture(); s.refund(s.release()) }},
}

// story is the events of one order, as the services make them.
type story struct {
	t      *testing.T
	placed events.Placed
	events []event.Event
}

// add adds the event that a service emits because of another one. When the service
// handles that one, it emits the same event once more.
func (s *story) add(service event.Consumer, cause event.Event, d event.Draft) event.Event {
	s.t.Helper()
	id := consumer.DerivedIdentity(service, cause, 0)
	id.Source = "/" + string(service)
	e, err := d.Seal(id)
	if err != nil {
		s.t.Fatal(err)
	}
	s.events = append(s.events, e)
	return e
}

func (s *story) key() event.Key { return event.Key(s.placed.OrderID) }

func (s *story) capture() event.Event {
	return s.add(payment.Name, s.events[0], events.PaymentCaptured.New(s.key(), events.Captured{
		OrderID: s.placed.OrderID, ChargeID: "ch-1", Amount: s.placed.Total, Items: s.placed.Items,
	}))
}

func (s *story) decline() event.Event {
	return s.add(payment.Name, s.events[0], events.PaymentDeclined.New(s.key(), events.Declined{OrderID: s.placed.OrderID, Reason: "declined"}))
}

func (s *story) reserve(cause event.Event) event.Event {
	return s.add(inventory.Name, cause, events.InventoryReserved.New(s.key(), events.Reserved{OrderID: s.placed.OrderID, Items: s.placed.Items}))
}

func (s *story) reject(cause event.Event) event.Event {
	return s.add(inventory.Name, cause, events.InventoryRejected.New(s.key(), events.Rejected{OrderID: s.placed.OrderID, Reason: "out of stock"}))
}

func (s *story) release() event.Event {
	return s.add(inventory.Name, s.events[1], events.InventoryReleased.New(s.key(), events.Released{OrderID: s.placed.OrderID}))
}

func (s *story) refund(cause event.Event) event.Event {
	return s.add(payment.Name, cause, events.PaymentRefunded.New(s.key(), events.Refunded{
		OrderID: s.placed.OrderID, RefundID: "re-1", Amount: s.placed.Total, Reason: "undone",
	}))
}

func (s *story) confirm(cause event.Event) event.Event {
	return s.add(order.Name, cause, events.OrderConfirmed.New(s.key(), events.Confirmed{OrderID: s.placed.OrderID, Total: s.placed.Total}))
}

// arrival is one order, and an order of arrival of its events.
type arrival struct {
	saga
	id    string
	order []int
}

// permutations are all orders of n things.
func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}

// The events of an order are stored in another order before a service is started.
// Wherever an event comes before one that it needs, the services end the order all the
// same: nobody holds stock or money, and nothing is a dead letter.
func TestEventsOfAnOrderArriveInEachOrder(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	bustest.Provision(t, b, topology.Config{Buckets: []string{payment.Bucket}})
	db := openDatabase(t)
	shop := openShop(t, db)
	var arrivals []arrival
	for _, saga := range sagas {
		for _, p := range permutations(saga.events) {
			id := shop.place(fmt.Sprint("key-", len(arrivals)), saga.customer, saga.sku, saga.cancelled)
			arrivals = append(arrivals, arrival{saga, id, p})
		}
	}
	names := map[string]string{}
	for stories, i := shop.close(), 0; i < len(arrivals); i++ {
		a := arrivals[i]
		s := stories[a.id]
		a.follow(s)
		var types []string
		for _, at := range a.order {
			types = append(types, s.events[at].Type())
			if _, err := b.Publish(t.Context(), s.events[at]); err != nil {
				t.Fatal(err)
			}
		}
		names[a.id] = strings.Join(types, " ")
	}
	g := openGateway(t)
	serve(t, b, func(b *bus.Bus) (*order.Service, error) { return order.New(b, db, order.Config{}) })
	serve(t, b, func(b *bus.Bus) (*inventory.Service, error) { return inventory.New(b, inventory.Config{}) })
	serve(t, b, func(b *bus.Bus) (*payment.Service, error) { return payment.New(b, payment.Config{GatewayURL: g.URL}) })

	r := audited(t, b, db, g)
	for _, v := range r.Violations {
		t.Errorf("%s, arrived as %s: %s: want %s, found %s", v.Order, names[v.Order], v.Invariant, v.Expected, v.Found)
	}
	for _, a := range arrivals {
		if got := r.Outcomes[a.id]; got != a.end {
			t.Errorf("%s, arrived as %s: %s, want %s", a.id, names[a.id], got, a.end)
		}
	}
	if r.DeadLetters > 0 || r.Orders != len(arrivals) {
		t.Errorf("%d dead letters, %d of %d orders", r.DeadLetters, r.Orders, len(arrivals))
	}
}
