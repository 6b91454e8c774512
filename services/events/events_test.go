package events_test

import (
	"errors"
	"math"
	"testing"

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
