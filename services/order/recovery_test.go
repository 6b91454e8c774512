package order

import (
	"net/http"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/services/events"
)

// An event of an order that has ended, and whose record is gone, finds nothing
// to apply to and makes nothing of it; nor does it touch the other orders.
func TestStale_event_makes_no_order(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Consumer.Retry.MaxAttempts = 1
		p := s.start(cfg)
		gone, other := p.order("gone"), p.order("other")
		s.publish(declined(gone))
		p.becomes(gone, Cancelled)
		s.settled() // order.placed.v1, too: order handles its own, for the deadline
		s.remove(gone)

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
	})
}

// What was committed is published by the next process, whatever has kept the
// first one from it.
func TestCommittedIsPublishedAfterARestart(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, bustest.StartServer(t, bustest.ServerConfig{}), database(t))
			p := s.start(config())
			id := p.order("before")
			s.settled()
			s.server.Stop(t)
			unsent := p.order("during") // 202: it is committed
			if a := p.call(http.MethodPost, "/orders/"+id+"/cancel", nil, ""); a.status != http.StatusAccepted {
				t.Errorf("cancel: %d %s", a.status, a.body)
			}
			p.stop = func() {}
			t.Logf("stopped without a server: %v", p.end())
			s.server.Restart(t)
			s.start(config())
			s.one("order.placed.v1", unsent)
			s.one("order.cancel_requested.v1", id)
		})
	}
}

// What could not be committed as a whole is not there, and nobody hears of it.
func TestRolledBackIsNeverHeardOf(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		open := p.order("open")
		s.settled()
		heal := s.refuse("events.order.")
		isProblem(t, "place", p.call(http.MethodPost, "/orders", key("k"), twoWidgets), http.StatusServiceUnavailable)
		isProblem(t, "cancel", p.call(http.MethodPost, "/orders/"+open+"/cancel", nil, ""), http.StatusServiceUnavailable)
		heal()
		if orders := p.orders(); len(orders) != 1 {
			t.Errorf("orders %+v", orders)
		}
		p.becomes(open, Placed)
		s.settled()
		if placed := s.events("order.placed.v1"); len(placed) != 1 {
			t.Errorf("placed: %v", placed)
		}
		s.none("order.cancel_requested.v1", open)

		// The customers ask again.
		s.one("order.placed.v1", p.order("k"))
		if a := p.call(http.MethodPost, "/orders/"+open+"/cancel", nil, ""); a.status != http.StatusAccepted {
			t.Errorf("cancel: %d %s", a.status, a.body)
		}
		s.one("order.cancel_requested.v1", open)
	})
}

// Without NATS orders are taken, shown and cancelled; their events follow.
func TestOutageLosesNothing(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, bustest.StartServer(t, bustest.ServerConfig{}), database(t))
			p := s.start(config())
			before := p.order("before")
			s.server.Stop(t)
			during := p.order("during")
			if again := p.order("during"); again != during {
				t.Errorf("the same request is order %s, was %s", again, during)
			}
			if a := p.call(http.MethodPost, "/orders/"+during+"/cancel", nil, ""); a.status != http.StatusAccepted {
				t.Errorf("cancel: %d %s", a.status, a.body)
			}
			if a := p.call(http.MethodGet, "/orders/"+during, nil, ""); parse[view](t, a.body).Status != Cancelling {
				t.Errorf("GET: %d %s", a.status, a.body)
			}
			if p.Health() == nil {
				t.Error("healthy without NATS")
			}
			s.server.Restart(t)
			bustest.Eventually(t, soon, func() error { return s.bus.Health() })
			for _, id := range []string{before, during} {
				s.one("order.placed.v1", id)
			}
			s.one("order.cancel_requested.v1", during)
			bustest.Eventually(t, soon, p.Health)
		})
	}
}

// Without its database the service takes nothing and says so; it goes on by
// itself.
func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pg.Config{})
	s := newSystem(t, bustest.Server(t), server.Database(t))
	p := s.start(config())
	before := p.order("before")
	s.settled()
	server.Stop(t)
	s.publish(captured(before)) // cannot be handled now
	isProblem(t, "place", p.call(http.MethodPost, "/orders", key("during"), twoWidgets), http.StatusServiceUnavailable)
	isProblem(t, "get", p.call(http.MethodGet, "/orders/"+before, nil, ""), http.StatusServiceUnavailable)
	bustest.Eventually(t, soon, func() bool { return p.Health() != nil })
	server.Restart(t)
	p.becomes(before, Paid)
	bustest.Eventually(t, soon, p.Health)
	s.one("order.placed.v1", p.order("during"))
	if st := p.Stats(); st.Parked > 0 {
		t.Errorf("stats %+v, want nothing parked", st)
	}
}

func TestUnreadableRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		broken, other := p.order("broken"), p.order("other")
		s.exec(`UPDATE orders SET items = '{' WHERE order_id = $1`, broken)
		isProblem(t, "broken", p.call(http.MethodGet, "/orders/"+broken, nil, ""), http.StatusInternalServerError)
		isProblem(t, "list", p.call(http.MethodGet, "/orders", nil, ""), http.StatusInternalServerError)
		s.publish(captured(other))
		p.becomes(other, Paid)
	})
}

// A reason may come from anywhere; Postgres has no text with NUL.
func TestReason_with_NUL(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		s.publish(events.PaymentDeclined.New(event.Key(id), events.Declined{OrderID: id, Reason: "a\x00b"}))
		p.becomes(id, Cancelled)
		if o, err := s.record(id); err != nil || o.Reason != "payment declined: a\ufffdb" {
			t.Errorf("reason %q, %v", o.Reason, err)
		}
		s.one("order.cancelled.v1", id)
		if c, err := events.OrderCancelled.Decode(s.events("order.cancelled.v1")[0]); err != nil || c.Reason != "payment declined: a\x00b" {
			t.Errorf("event's reason %q, %v", c.Reason, err)
		}
	})
}

func TestUpdatedIsWhenTheStatusChanged(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
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
	})
}
