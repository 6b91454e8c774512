package inventory

import (
	"errors"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
)

// purge empties the event stream.
func (s *system) purge() {
	s.Helper()
	stream, err := s.bus.JetStream().Stream(s.Context(), s.bus.Names().EventsStream())
	if err == nil {
		err = stream.Purge(s.Context())
	}
	if err != nil {
		s.Fatal(err)
	}
}

// isLost waits until an instance reports that the stock is lost.
func (s *system) isLost(svc *Service) {
	s.Helper()
	bustest.Eventually(s.TB, soon, func() bool {
		err := svc.Health()
		return errors.Is(err, ErrStockLost) && strings.Contains(err.Error(), "--reseed") && strings.Contains(err.Error(), "sku-gadget")
	})
}

// The stock is lost with the event stream. The service treats that as an outage, not as
// an empty stock: it rejects no order, also not after a restart, until somebody has
// the stock stored again.
func TestLostStock(t *testing.T) {
	t.Parallel()
	stock := map[string]int64{"gadget": 10}
	s := newSystem(t, stock)
	s.says(captured("before", of("gadget", 2)))
	s.purge()
	s.isLost(s.instances[0]) // before anybody asks for it

	for id, d := range map[string]func() error{
		"paid":      func() error { return s.store(captured("paid", of("gadget", 1)), 1) },
		"before":    func() error { return s.store(confirmed("before"), 1) },
		"cancelled": func() error { return s.store(cancelRequested("cancelled"), 1) },
	} {
		if err := d(); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	bustest.Eventually(t, soon, func() bool { return s.instances[0].Stats().Released >= 3 })
	again, stop := s.launch(Config{Stock: stock})
	s.isLost(again)
	if said := s.emitted(); len(said) > 0 {
		t.Errorf("it said %v of a stock that is lost", said)
	}
	if n := s.parked(); n > 0 {
		t.Errorf("%d events are parked, want none", n)
	}
	stop()

	anew, _ := s.launch(Config{Stock: stock, Reseed: true})
	bustest.Eventually(t, soon, anew.Health)
	bustest.Eventually(t, soon, func() bool {
		said := s.emitted()
		return said["paid"] == "reserved" && said["cancelled"] == "released"
	})
	s.is("gadget", 9, 1, 0)
}

// A SKU that is added to a running system is not taken for a lost one.
func TestLostStock_is_not_a_new_SKU(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"gadget": 10})
	s.initial = map[string]int64{"gadget": 10, "gizmo": 5}
	s.start(s.initial)
	s.start(s.initial)
	s.says(captured("ord-1", of("gizmo", 2)))
	s.is("gizmo", 3, 2, 0)
	s.is("gadget", 10, 0, 0)
}
