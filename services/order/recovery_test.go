package order

import (
	"net/http"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

// An event of an order that has ended, and whose record is gone, finds nothing
// to apply to and makes nothing of it; nor does it touch the other orders.
func TestB92_stale_event_makes_no_order(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	cfg := config()
	cfg.Consumer.Retry.MaxAttempts = 1
	p := s.start(cfg, nil)
	gone, other := p.order("gone"), p.order("other")
	s.publish(declined(gone))
	p.becomes(gone, Cancelled)
	kv, err := s.bus.JetStream().KeyValue(t.Context(), s.bus.Names().Bucket(Bucket))
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(t.Context(), gone); err != nil {
		t.Fatal(err)
	}

	s.publish(captured(gone), reserved(gone), refunded(gone))
	bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 3 })
	p.becomes(gone, "")
	p.becomes(other, Placed)
	s.one("order.cancelled.v1", gone)
	s.none("order.confirmed.v1", gone)
	isProblem(t, "gone", p.call(http.MethodGet, "/orders/"+gone, nil, ""), http.StatusNotFound)

	// The customer may use the key again: that is an order of its own, which
	// what has been parked does not touch.
	if again := p.order("gone"); again != gone {
		t.Fatalf("placed %s, want %s", again, gone)
	}
	s.settled()
	p.becomes(gone, Placed)
}

// What is unannounced is announced although another record is unreadable.
func TestUnreadableRecordHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	kv, err := s.bus.JetStream().KeyValue(t.Context(), s.bus.Names().Bucket(Bucket))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "ord-broken", []byte("{")); err != nil {
		t.Fatal(err)
	}
	bucket, err := bus.OpenBucket[Order](t.Context(), s.bus, Bucket)
	if err != nil {
		t.Fatal(err)
	}
	left := Order{ID: idOf("left"), Status: Placed, CustomerID: "alice", Currency: "EUR", Total: 5000, Items: items()}
	if _, err := bucket.Put(t.Context(), left.key(), left, 0); err != nil {
		t.Fatal(err)
	}
	p := s.start(config(), nil)
	bustest.Eventually(t, soon, func() bool { return len(s.emitted("order.placed.v1", left.ID)) == 1 })
	isProblem(t, "broken", p.call(http.MethodGet, "/orders/ord-broken", nil, ""), http.StatusInternalServerError)
}

func TestUpdatedIsWhenTheStatusChanged(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t))
	p := s.start(config(), nil)
	began := now()
	id := p.order("k")
	updated := func() time.Time {
		return parse[view](t, p.call(http.MethodGet, "/orders/"+id, nil, "").body).Updated
	}
	placed := updated()
	if placed.Before(began) || placed.After(now()) {
		t.Errorf("placed at %v, it is %v", placed, now())
	}
	bustest.Eventually(t, soon, func() bool { return now().After(placed) }) // the clock has milliseconds
	p.order("k")
	if at := updated(); !at.Equal(placed) {
		t.Errorf("a repeated request is an update: %v, placed at %v", at, placed)
	}
	s.publish(captured(id))
	p.becomes(id, Paid)
	if at := updated(); !at.After(placed) {
		t.Errorf("paid at %v, placed at %v", at, placed)
	}
}
