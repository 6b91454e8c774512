package state_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

func TestSeed(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := open(t, b, 1)
	if err := s.stocks.Create(t.Context(), "sku-widget", stock{3}); err != nil { // by an older version
		t.Fatal(err)
	}
	for range 2 {
		for _, key := range []event.Key{"sku-widget", "sku-gadget"} {
			if err := s.stocks.Seed(t.Context(), key, stock{7}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if w, g := s.available("widget"), s.available("gadget"); w != 3 || g != 7 {
		t.Errorf("seeded %d and %d, want 3 and 7", w, g)
	}
	if err := s.stocks.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A seeded document that is gone is lost for every process, not only for the one
// that has seeded it.
func TestSeed_of_a_lost_document(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	first, second := open(t, b, 1), open(t, b, 2)
	if err := first.stocks.Seed(t.Context(), "sku-widget", stock{7}); err != nil {
		t.Fatal(err)
	}
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSubject(b.Names().StateFilter("inventory")))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, got := first.stocks.Get(t.Context(), "sku-widget")
	for what, err := range map[string]error{
		"get": got, "check": first.stocks.Check(t.Context()), "seed": second.stocks.Seed(t.Context(), "sku-widget", stock{7}),
	} {
		if !errors.Is(err, state.ErrLost) || !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrLost", what, err)
		}
	}
	if _, err := first.stocks.Get(t.Context(), "sku-other"); err != nil {
		t.Errorf("one that was never there: %v", err)
	}
	if err := second.stocks.Create(t.Context(), "sku-widget", stock{5}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.stocks.Check(t.Context()), second.stocks.Seed(t.Context(), "sku-widget", stock{7})); err != nil || first.available("widget") != 5 {
		t.Errorf("after it was made anew: %v, %d", err, first.available("widget"))
	}
}
