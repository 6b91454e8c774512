package inventory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/farandole/farandole/services/events"
)

// Each case is one event about an order of two widgets. There are ten widgets, of which
// held are set aside.
func TestDecisions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		from   Status
		paid   bool // the order's payment was handled before
		decide string
		to     Status // "" when nothing changes
		stock  string // available, held and reserved; "" when the stock stays
		emits  string // type and reason, "" for nothing
	}{
		{"paid", "", false, "captured", Reserved, "6 4 0", "inventory.reserved.v1"},
		{"short", "", false, "captured too much", Rejected, "", "inventory.rejected.v1"},
		{"cancelled before the payment", Released, false, "captured", Released, "", "inventory.rejected.v1"},
		{"second capture after that", Released, true, "captured", "", "", ""},
		{"second capture of a reserved order", Reserved, true, "captured", "", "", ""},
		{"second capture of a rejected order", Rejected, true, "captured", "", "", ""},
		{"second capture of a confirmed order", Settled, true, "captured", "", "", ""},
		{"cancel before anything", "", false, "cancel", Released, "", "inventory.released.v1"},
		{"cancel reserved", Reserved, true, "cancel", Released, "10 0 0", "inventory.released.v1"},
		{"cancel rejected", Rejected, true, "cancel", Released, "", "inventory.released.v1"},
		{"cancel twice", Released, true, "cancel", "", "", ""},
		{"cancel confirmed", Settled, true, "cancel", "", "", ""},
		{"confirm reserved", Reserved, true, "confirm", Settled, "8 0 2", ""},
		{"confirm twice", Settled, true, "confirm", "", "", ""},
		{"confirm rejected", Rejected, true, "confirm", "", "", ""},
		{"confirm released", Released, true, "confirm", "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			items := []events.Item{{SKU: "widget", Quantity: 2}}
			o := Order{ID: "ord-1", Status: tc.from}
			if tc.paid {
				o.Items = items
			}
			stock := []Stock{{SKU: "widget", Initial: 10, Available: 8, Held: 2}}
			var v verdict
			var err error
			switch tc.decide {
			case "captured":
				v = onCaptured(o, items, stock)
			case "captured too much":
				v = onCaptured(o, []events.Item{{SKU: "widget", Quantity: 9}}, stock)
			case "cancel":
				v, err = onCancel(o, stock)
			case "confirm":
				v, err = onConfirmed(o, stock)
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if v.stock != nil {
				got = fmt.Sprint(v.stock[0].Available, v.stock[0].Held, v.stock[0].Reserved)
			}
			if v.order.Status != tc.to || got != tc.stock || types(v) != tc.emits {
				t.Errorf("got %q, stock %q, emits %q, want %q, %q, %q", v.order.Status, got, types(v), tc.to, tc.stock, tc.emits)
			}
		})
	}
}

func types(v verdict) (all string) {
	for _, d := range v.emits {
		all += string(d.Type)
	}
	return all
}

// Documents that contradict each other give an error, not a negative number of pieces.
func TestDecisionsOnBrokenDocuments(t *testing.T) {
	t.Parallel()
	o := Order{ID: "ord-1", Status: Reserved, Items: []events.Item{{SKU: "widget", Quantity: 2}}}
	less := []Stock{{SKU: "widget", Initial: 10, Available: 9, Held: 1}}
	if _, err := onCancel(o, less); !errors.Is(err, ErrNotHeld) {
		t.Errorf("cancel: got %v, want ErrNotHeld", err)
	}
	if _, err := onConfirmed(o, less); !errors.Is(err, ErrNotHeld) {
		t.Errorf("confirm: got %v, want ErrNotHeld", err)
	}
	if _, err := onConfirmed(Order{ID: "ord-2"}, nil); !errors.Is(err, ErrNotReserved) {
		t.Errorf("confirm an order never heard of: got %v, want ErrNotReserved", err)
	}
}

// model is an inventory in memory that decides each event at once.
type model struct {
	orders  map[string]Order
	stock   map[string]Stock
	emitted map[string]int // type and order
}

func (m *model) apply(id string, items []events.Item, decide func(Order, []Stock) (verdict, error)) error {
	o := m.orders[id]
	o.ID = id
	if items == nil {
		items = o.Items
	}
	stock := make([]Stock, len(items))
	for i, item := range items {
		stock[i] = m.stock[item.SKU]
	}
	v, err := decide(o, stock)
	if err != nil || v.order.Status == "" {
		return err
	}
	m.orders[id] = v.order
	for _, x := range v.stock {
		m.stock[x.SKU] = x
	}
	for _, d := range v.emits {
		m.emitted[string(d.Type)+" "+id]++
	}
	return nil
}

// In any order and with any repetition of events: the number of pieces stays the same,
// exactly the reserved orders hold pieces, and no event is emitted twice.
func TestAny_events_conserve_the_stock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{orders: map[string]Order{}, stock: map[string]Stock{}, emitted: map[string]int{}}
		for _, sku := range []string{"widget", "gadget", "anvil"} {
			n := rapid.Int64Range(0, 12).Draw(rt, sku)
			m.stock[sku] = Stock{SKU: sku, Initial: n, Available: n}
		}
		item := rapid.Custom(func(rt *rapid.T) events.Item {
			return events.Item{
				SKU:      rapid.SampledFrom([]string{"widget", "gadget", "anvil", "nonsense"}).Draw(rt, "sku"),
				Quantity: rapid.Int64Range(1, 4).Draw(rt, "quantity"),
			}
		})
		lines := rapid.SliceOfNDistinct(item, 1, 3, func(i events.Item) string { return i.SKU })
		for range rapid.IntRange(1, 40).Draw(rt, "events") {
			id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "order")
			var err error
			switch rapid.SampledFrom([]string{"captured", "captured", "cancel", "confirm"}).Draw(rt, "event") {
			case "captured":
				items := lines.Draw(rt, "items")
				err = m.apply(id, items, func(o Order, stock []Stock) (verdict, error) { return onCaptured(o, items, stock), nil })
			case "cancel":
				err = m.apply(id, nil, onCancel)
			case "confirm":
				if err = m.apply(id, nil, onConfirmed); errors.Is(err, ErrNotReserved) && m.orders[id].Status == "" {
					err = nil
				}
			}
			if err != nil {
				rt.Fatal(err)
			}
			if err := m.check(); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func (m *model) check() error {
	for told, n := range m.emitted {
		if n > 1 {
			return fmt.Errorf("%d times %s", n, told)
		}
	}
	return conserved(slices.Collect(maps.Values(m.orders)), m.stock)
}

// conserved checks that the documents of SKUs and of orders fit together.
func conserved(orders []Order, stock map[string]Stock) error {
	held, left := map[string]int64{}, map[string]int64{}
	for _, o := range orders {
		for _, item := range o.Items {
			switch o.Status {
			case Reserved:
				held[item.SKU] += item.Quantity
			case Settled:
				left[item.SKU] += item.Quantity
			case Rejected, Released:
			}
		}
	}
	for sku, x := range stock {
		want := Stock{SKU: sku, Initial: x.Initial, Held: held[sku], Reserved: left[sku]}
		want.Available = want.Initial - want.Held - want.Reserved
		if x != want || x.Available < 0 {
			return fmt.Errorf("%+v, the orders say %+v", x, want)
		}
		delete(held, sku)
		delete(left, sku)
	}
	if len(held)+len(left) > 0 {
		return fmt.Errorf("pieces of SKUs that are not there: %v held, %v settled", held, left)
	}
	return nil
}
