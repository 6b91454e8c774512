package bus_test

import (
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

type stored struct {
	Total int `json:"total"`
}

var storedOrder = bus.Define[stored]("order.placed.v1")

func TestPublishStoresTheEventOnce(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	e, err := b.Seal(storedOrder.New("ord-1", stored{Total: 5}))
	if err != nil {
		t.Fatal(err)
	}
	first, err := b.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if first.Duplicate || !again.Duplicate || first.Sequence != again.Sequence {
		t.Errorf("first %+v, again %+v", first, again)
	}
	bustest.Eventually(t, time.Second, func() bool { return true })
}

func newEvent(t *testing.T, b *bus.Bus, key bus.Key) bus.Event {
	t.Helper()
	e, err := b.Seal(storedOrder.New(key, stored{Total: 1}))
	if err != nil {
		t.Fatal(err)
	}
	return e
}
