package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/resilience/fleet"
	"github.com/farandole/farandole/services/audit"
)

// atRest runs ten orders to their ends on a system that stays up, and returns
// it with the orders' ids.
func atRest(t *testing.T, databaseURL string) (*system, []string) {
	t.Helper()
	cfg := Config{Orders: 10, Seed: 5, Faults: None, DatabaseURL: databaseURL}.withDefaults()
	s, err := startSystem(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	shop := newClient(s.shops, cfg.Concurrency)
	defer shop.close()
	orders, err := placeAll(t.Context(), shop, plan(cfg.Orders, cfg.Seed, cfg.Faults), cfg, &atomic.Int64{})
	if err != nil {
		t.Fatal(err)
	}
	if err := awaitRest(t.Context(), s.bus, s.store.Database); err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(orders))
	for i, o := range orders {
		ids[i] = o.id
	}
	return s, ids
}

// confirmedOrders returns the ids of orders that ended well.
func confirmedOrders(t *testing.T, r audit.Report, n int) (ids []string) {
	t.Helper()
	for id, status := range r.Outcomes {
		if status == "confirmed" {
			ids = append(ids, id)
		}
	}
	if len(ids) < n {
		t.Fatalf("%d confirmed orders, want %d", len(ids), n)
	}
	return ids
}

// The audit of a real run that somebody has tampered with names what is wrong,
// on both databases. Each step adds a crime to those before.
func TestAudit_sees_what_was_tampered_with(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		tamper(t, "")
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		tamper(t, pgtest.Database(t))
	})
}

func tamper(t *testing.T, databaseURL string) {
	t.Helper()
	s, ids := atRest(t, databaseURL)
	check := func() audit.Report {
		t.Helper()
		r, err := audit.Run(t.Context(), s.bus, s.store.DB, s.gateway.AdminURL, ids...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := check()
	if !before.OK {
		t.Fatalf("before anything was done: %v", before.Violations)
	}
	victims := confirmedOrders(t, before, 2)
	victim, other := victims[0], victims[1]
	sees := func(invariant, order, says string) {
		t.Helper()
		r := check()
		if r.OK {
			t.Errorf("the audit holds, want %s %s", invariant, order)
		}
		for _, v := range r.Violations {
			if v.Invariant == invariant && v.Order == order && strings.Contains(v.String(), says) {
				return
			}
		}
		t.Errorf("want %s of %q saying %q, got %v", invariant, order, says, r.Violations)
	}

	chargeAgain(t, s.gateway.URL, victim)
	sees(audit.Money, victim, "one charge")

	takePieces(t, s.bus, "widget")
	sees(audit.StockKept, "", "of widget as the sum of available, held and reserved")

	holdAgain(t, s.bus, victim)
	sees(audit.StockKept, victim, "reservation reserved")
	sees(audit.StockKept, "", "held, as in the reservations")

	handleLate(t, s.bus, other, "payment.captured.v1")
	sees(audit.Sequence, other, "payment.captured.v1 handled by inventory before order.confirmed.v1")

	deleteEvent(t, s.bus, victim, "payment.captured.v1")
	sees(audit.Causation, victim, "inventory.reserved.v1")

	forgeEvent(t, s.bus, victim)
	sees(audit.Path, victim, "one final event")

	now := time.Now().UTC()
	forgeBreaker(t, s.bus, "/mallory", 1, now)
	sees(audit.Breaker, "", "the source /payment of breaker.opened.v1 payment-gateway-1-1, found /mallory")
	forgeBreaker(t, s.bus, "/payment", 2, now)
	failAt(t, s.bus, other, now.Add(time.Minute))
	sees(audit.Attempts, other, "no attempt spent while the breaker of the gateway is not closed")

	ids = append(ids, "ord-lost")
	sees(audit.Final, "ord-lost", "none")
	sees(audit.Stored, "ord-lost", "none")

	// What is done to the tables is not to be put right by the service.
	if err := s.supervisors[0].stop(); err != nil {
		t.Fatal(err)
	}
	tamperWithTables(t, s, sees, victim, other)
}

func tamperWithTables(t *testing.T, s *system, sees func(invariant, order, says string), victim, other string) {
	t.Helper()
	s.doctor(t, 1, `UPDATE orders SET status = 'placed' WHERE order_id = $1`, victim)
	sees(audit.Final, victim, "status placed")

	row := "events.order.confirmed.v1." + victim
	s.doctor(t, 1, `UPDATE outbox SET status = 'PENDING' WHERE subject = $1`, row)
	sees(audit.Outbox, victim, "found PENDING")
	s.doctor(t, 1, `UPDATE outbox SET status = 'PROCESSING' WHERE subject = $1`, row)
	sees(audit.Outbox, victim, "found PROCESSING")
	s.doctor(t, 1, `UPDATE outbox SET status = 'DEAD_LETTER' WHERE subject = $1`, row)
	sees(audit.Outbox, victim, "an attempt that says why row")
	s.doctor(t, 1, `UPDATE outbox SET status = 'PUBLISHED', message_id = 'another' WHERE subject = $1`, row)
	sees(audit.Outbox, victim, "the message of row")
	s.doctor(t, 1, `INSERT INTO outbox (message_id, subject, key, headers, data, status)
		SELECT 'double', subject, key, headers, data, status FROM outbox WHERE subject = $1`, row)
	sees(audit.Outbox, victim, "one row on "+row)

	s.doctor(t, 1, `UPDATE inbox SET mark = '{"state":"waiting"}' WHERE event_key = (SELECT min(event_key) FROM inbox)`)
	sees(audit.Inbox, "", "waiting")

	// Committed without its event, and the other way round.
	s.doctor(t, 1, `INSERT INTO orders (order_id, status, customer_id, currency, total, items, request, instance, created_at, updated_at)
		SELECT 'ord-silent', 'placed', customer_id, currency, total, items, request, instance, created_at, updated_at FROM orders WHERE order_id = $1`, victim)
	sees(audit.Stored, "ord-silent", "none")
	s.doctor(t, 1, `DELETE FROM orders WHERE order_id = $1`, other)
	sees(audit.Stored, other, "a row in the orders table, as order.placed.v1 is in the stream")
}

// chargeAgain charges an order under another idempotency key.
func chargeAgain(t *testing.T, gatewayURL, id string) {
	t.Helper()
	body := `{"order_id":"` + id + `","customer_id":"thief","amount":2500,"currency":"EUR"}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gatewayURL+"/charges", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "another")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatal(resp.Status, err)
	}
}

// changeState rewrites a document that a service keeps in the event stream.
func changeState(t *testing.T, b *bus.Bus, consumer event.Consumer, key event.Key, f func(document map[string]any)) {
	t.Helper()
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	last, err := stream.GetLastMsgForSubject(t.Context(), b.Names().StateSubject(consumer, key))
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(last.Data, &document); err != nil {
		t.Fatal(err)
	}
	f(document)
	next := nats.NewMsg(last.Subject)
	if next.Data, err = json.Marshal(document); err != nil {
		t.Fatal(err)
	}
	if _, err := b.JetStream().PublishMsg(t.Context(), next); err != nil {
		t.Fatal(err)
	}
}

func takePieces(t *testing.T, b *bus.Bus, sku string) {
	t.Helper()
	changeState(t, b, "inventory", event.Key("sku-"+sku), func(d map[string]any) { d["available"] = 17 })
}

// holdAgain undoes the end of an order's reservation.
func holdAgain(t *testing.T, b *bus.Bus, id string) {
	t.Helper()
	changeState(t, b, "inventory", event.Key("order-"+id), func(d map[string]any) { d["status"] = "reserved" })
}

// doctor changes rows of the order service's tables.
func (s *system) doctor(t *testing.T, rows int64, statement string, args ...any) {
	t.Helper()
	result, err := s.store.DB.ExecContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := result.RowsAffected(); err != nil || n != rows {
		t.Fatalf("%d rows changed, want %d (%v): %s", n, rows, err, statement)
	}
}

func deleteEvent(t *testing.T, b *bus.Bus, id string, eventType event.Type) {
	t.Helper()
	var sequence uint64
	err := follow.Read(t.Context(), b, follow.Options{
		Filters: []string{b.Names().Stored(b.Names().EventSubject(eventType, event.Key(id)), event.DefaultPartitions)}, FromStart: true, NoFollow: true,
	}, func(m follow.Message) error { sequence = m.Sequence; return nil })
	if err != nil {
		t.Fatal(err)
	}
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), sequence); err != nil {
		t.Fatal(err)
	}
}

// handleLate moves the page that says that the inventory has handled an event of an order
// behind all others, as if it had handled the order's next event first.
func handleLate(t *testing.T, b *bus.Bus, id string, eventType event.Type) {
	t.Helper()
	var key event.BinaryKey
	filter := b.Names().Stored(b.Names().EventSubject(eventType, event.Key(id)), event.DefaultPartitions)
	err := follow.Read(t.Context(), b, follow.Options{Filters: []string{filter}, FromStart: true, NoFollow: true}, func(m follow.Message) error {
		e, err := event.Decode(m.Header, m.Data)
		if err == nil {
			key, err = event.EventKeyOf(e).Binary()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var page follow.Message
	pages := b.Names().Root("ledger.inventory.*.page")
	err = follow.Read(t.Context(), b, follow.Options{Filters: []string{pages}, FromStart: true, NoFollow: true}, func(m follow.Message) error {
		if bytes.Contains(m.Data, key[:]) {
			page = m
		}
		return nil
	})
	if err != nil || page.Sequence == 0 {
		t.Fatalf("no page of %s %s: %v", id, eventType, err)
	}
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err == nil {
		err = stream.DeleteMsg(t.Context(), page.Sequence)
	}
	if err == nil {
		_, err = b.JetStream().PublishMsg(t.Context(), &nats.Msg{Subject: page.Subject, Header: nats.Header{"Farandole-Page": {"page"}}, Data: page.Data})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// forgeEvent publishes a second end of an order, as if its service had.
func forgeEvent(t *testing.T, b *bus.Bus, id string) {
	t.Helper()
	e, err := event.Draft{Type: typeCancelled, Key: event.Key(id)}.Seal(event.Identity{ID: "forged", Source: "/order"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// forgeBreaker publishes that the breaker of the gateway has opened for an hour.
func forgeBreaker(t *testing.T, b *bus.Bus, source string, term int, at time.Time) {
	t.Helper()
	draft := fleet.Opened.New("payment-gateway", fleet.Changed{
		Consumer: "payment", Breaker: "gateway", Opened: 1, At: at, Until: at.Add(time.Hour), By: "host 1",
	})
	e, err := draft.Seal(event.Identity{ID: fmt.Sprint("payment-gateway-1-", term), Source: source})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// failAt writes into the ledger that payment failed at an order.
func failAt(t *testing.T, b *bus.Bus, id string, at time.Time) {
	t.Helper()
	var key event.EventKey
	filter := b.Names().Stored(b.Names().EventSubject(typePlaced, event.Key(id)), event.DefaultPartitions)
	err := follow.Read(t.Context(), b, follow.Options{Filters: []string{filter}, FromStart: true, NoFollow: true}, func(m follow.Message) error {
		e, err := event.Decode(m.Header, m.Data)
		key = event.EventKeyOf(e)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mark, err := json.Marshal(map[string]any{
		"state": "done", "failures": 1, "first_failure": event.Attempt{Number: 1, At: at, Class: "error", Error: "503"},
	})
	if err != nil {
		t.Fatal(err)
	}
	subject := "$KV." + b.Names().Bucket("dedup") + ".payment." + string(key)
	if _, err := b.JetStream().Publish(t.Context(), subject, mark); err != nil {
		t.Fatal(err)
	}
}
