package events_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/services/events"
)

func order(change func(p *events.Placed)) events.Placed {
	p := events.Placed{
		OrderID: "ord-1", CustomerID: "anna", Items: []events.Item{{SKU: "widget", Quantity: 1}},
		Total: events.Money{Amount: 2500, Currency: "EUR"},
	}
	change(&p)
	return p
}

func TestPlacedIsValidated(t *testing.T) {
	t.Parallel()
	items := func(items ...events.Item) events.Placed { return order(func(p *events.Placed) { p.Items = items }) }
	for name, tc := range map[string]struct {
		p  events.Placed
		ok bool
	}{
		"good":              {order(func(*events.Placed) {}), true},
		"free":              {order(func(p *events.Placed) { p.Total.Amount = 0 }), true},
		"most of it":        {items(events.Item{SKU: "widget", Quantity: events.MaxQuantity}), true},
		"no order":          {order(func(p *events.Placed) { p.OrderID = "" }), false},
		"no customer":       {order(func(p *events.Placed) { p.CustomerID = "" }), false},
		"negative":          {order(func(p *events.Placed) { p.Total.Amount = -1 }), false},
		"no currency":       {order(func(p *events.Placed) { p.Total.Currency = "" }), false},
		"small letters":     {order(func(p *events.Placed) { p.Total.Currency = "eur" }), false},
		"unknown currency":  {order(func(p *events.Placed) { p.Total.Currency = "ABC" }), false},
		"three bytes":       {order(func(p *events.Placed) { p.Total.Currency = "€" }), false},
		"no items":          {items(), false},
		"too many items":    {items(make([]events.Item, events.MaxItems+1)...), false},
		"no sku":            {items(events.Item{Quantity: 1}), false},
		"sku twice":         {items(events.Item{SKU: "a", Quantity: 1}, events.Item{SKU: "a", Quantity: 1}), false},
		"none of it":        {items(events.Item{SKU: "a"}), false},
		"too many of it":    {items(events.Item{SKU: "a", Quantity: events.MaxQuantity + 1}), false},
		"a negative number": {items(events.Item{SKU: "a", Quantity: -1}), false},
	} {
		captured := events.Captured{OrderID: tc.p.OrderID, ChargeID: tc.p.CustomerID, Amount: tc.p.Total, Items: tc.p.Items}
		for kind, err := range map[string]error{"placed": tc.p.Validate(), "captured": captured.Validate()} {
			if tc.ok && err != nil || !tc.ok && !errors.Is(err, events.ErrInvalid) {
				t.Errorf("%s, %s: %v", name, kind, err)
			}
		}
	}
}

func TestMoneyDoesNotOverflow(t *testing.T) {
	t.Parallel()
	eur := func(n int64) events.Money { return events.Money{Amount: n, Currency: "EUR"} }
	for _, tc := range []struct {
		unit, n int64
		want    int64
		ok      bool
	}{
		{2500, 3, 7500, true},
		{2500, 0, 0, true},
		{0, math.MaxInt64, 0, true},
		{1, math.MaxInt64, math.MaxInt64, true},
		{2, math.MaxInt64/2 + 1, 0, false},
		{math.MaxInt64, 2, 0, false},
		{1, -1, 0, false},
		{-1, 1, 0, false},
	} {
		if got, ok := eur(tc.unit).Times(tc.n); ok != tc.ok || ok && got != eur(tc.want) {
			t.Errorf("%d times %d: %v, %v", tc.unit, tc.n, got, ok)
		}
	}
	if got, ok := eur(math.MaxInt64 - 1).Plus(eur(1)); !ok || got != eur(math.MaxInt64) {
		t.Errorf("just fits: %v, %v", got, ok)
	}
	if _, ok := eur(math.MaxInt64).Plus(eur(1)); ok {
		t.Error("overflows")
	}
	if _, ok := eur(1).Plus(events.Money{Amount: 1, Currency: "USD"}); ok {
		t.Error("currencies are mixed")
	}
}

// A rerun gets what the first run returned, to the last byte, also after the
// state has been stored and read.
func TestStepsRememberDrafts(t *testing.T) {
	t.Parallel()
	cause := sealed(t, "e1")
	want := []event.Draft{
		events.PaymentDeclined.New("ord-1", events.Declined{OrderID: "ord-1", Reason: `<"no" & €\u2028>` + "\u2028\x01"}),
		events.OrderCancelled.New("ord-1", events.Cancelled{OrderID: "ord-1"}),
	}
	var none events.Steps
	if drafts, known := none.Of(cause); known || drafts != nil {
		t.Fatalf("nothing happened yet: %v", drafts)
	}
	steps := none.With(cause, want)
	nothing := steps.With(sealed(t, "e2"), nil)
	if len(none) != 0 || len(steps) != 1 || len(nothing) != 2 {
		t.Fatalf("With changed its receiver: %d, %d, %d", len(none), len(steps), len(nothing))
	}
	data, err := json.Marshal(nothing)
	if err != nil {
		t.Fatal(err)
	}
	var stored events.Steps
	if err := json.Unmarshal(data, &stored); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]events.Steps{"kept": nothing, "stored": stored} {
		if got, known := s.Of(cause); !known || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if got, known := s.Of(sealed(t, "e2")); !known || len(got) != 0 {
			t.Errorf("%s: an event that led to nothing: %v, %v", name, got, known)
		}
		if _, known := s.Of(sealed(t, "e3")); known {
			t.Errorf("%s: an event that was never seen is known", name)
		}
	}
}

func sealed(t *testing.T, id string) event.Event {
	t.Helper()
	e, err := events.OrderPlaced.New("ord-1", order(func(*events.Placed) {})).Seal(event.Identity{ID: id, Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
