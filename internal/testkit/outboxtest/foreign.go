package outboxtest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// foreign is a row as somebody writes it by hand: the documented one of an event,
// as far as nothing else is said.
type foreign struct {
	id, kind, key     string // the event's; kind defaults to placed
	messageID, header string // header is a JSON object without its braces, after the attributes
	subject           string
	consumer          string
}

// writes inserts rows.
func (r *rig) writes(rows ...foreign) {
	r.Helper()
	for _, w := range rows {
		if w.kind == "" {
			w.kind = placed
		}
		if w.subject == "" {
			w.subject = "events." + w.kind + "." + w.key
		}
		if w.messageID == "" {
			w.messageID = string(event.NewEventKey("/by-hand", w.id))
		}
		headers := fmt.Sprintf(`{"ce-specversion": "1.0", "ce-id": %q, "ce-source": "/by-hand", "ce-type": %q, "ce-partitionkey": %q%s}`, w.id, w.kind, w.key, w.header)
		var consumer any // NULL
		if w.consumer != "" {
			consumer = w.consumer
		}
		r.exec("INSERT INTO outbox (message_id, subject, key, headers, data, consumer) VALUES ($1, $2, $3, $4, $5, $6)",
			w.messageID, r.rooted(w.subject), w.key, headers, []byte("{}"), consumer)
	}
}

// fade is how long a claim or an answer may be late for another reason than the
// rows: less than what a relay remembers trouble for.
const fade = 5 * time.Second

// rooted puts the system's prefix before a subject, but for the server's own.
func (r *rig) rooted(subject string) string {
	if strings.HasPrefix(subject, "$") {
		return subject
	}
	return r.bus.Names().Root(subject)
}

// parked wants the parked rows' keys to have these classes, and reasons that say so.
func (r *rig) parked(want map[string][2]string) {
	r.Helper()
	found := map[string]bool{}
	for _, p := range r.parkedRows(dlq.Filter{}) {
		key := string(p.Key)
		found[key] = true
		if w := want[key]; p.Class != w[0] || !strings.Contains(p.Error, w[1]) {
			r.Errorf("%s is parked as %s: %s; want %s: %s", key, p.Class, p.Error, w[0], w[1])
		}
	}
	if len(found) != len(want) {
		r.Errorf("parked are %v, want %d rows", found, len(want))
	}
}

// quick is a relay that gives rows up soon.
func (r *rig) quick() *running {
	r.Helper()
	return r.relay(outbox.RelayConfig{MaxAttempts: 2, BaseDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond, Poll: 10 * time.Millisecond})
}

// commands has rows that tell the server something, or go where only Farandole writes.
func commands(r *rig) {
	before := r.events(1, keys("before-", 5)...)
	for _, e := range before {
		_, err := r.bus.Publish(r.Context(), e)
		r.ok(err)
	}
	want := map[string][2]string{}
	for i, header := range []string{
		`"Nats-Rollup": "all"`, `"Nats-Rollup": "sub"`, `"nats-rollup": "all"`, `"Nats-TTL": "1s"`, `"Nats-TTL": "soon"`, `"Nats-Schedule": "@every 1s"`,
		`"Nats-Schedule-Target": "state.x.y"`, `"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1"`, `"Nats-Expected-Last-Sequence": "1"`,
		`"Nats-Expected-Last-Subject-Sequence": "999"`, `"Nats-Expected-Last-Msg-Id": "x"`, `"Nats-Incr": "+1"`, `"nats-msg-id": "x"`,
	} {
		key := fmt.Sprint("header-", i)
		name, _, _ := strings.Cut(strings.Trim(header, `"`), `"`)
		want[key] = [2]string{"not-admitted", name}
		r.writes(foreign{id: key, key: key, header: ", " + header})
	}
	for i, subject := range []string{
		"state.inventory.sku-widget", "$KV.dedup.order.x", "dlq.order.decode.x", "ledger.order.x", "redrive.order.order.placed.v1.x",
		"timer.order.deadline.x", "$JS.API.STREAM.PURGE.EVENTS", "events.order.cancelled.v1.x", "events.order.placed.v1.another", "events.>", "orders",
	} {
		key := fmt.Sprint("subject-", i)
		want[key] = [2]string{"not-admitted", "subject"}
		r.writes(foreign{id: key, key: key, subject: subject})
	}
	for key, header := range map[string]string{
		"null": `"x": null`, "nulls": `"x": [null]`, "number": `"x": 1`, "line-end": `"x": "a\r\nNats-Rollup: all"`, "name": `"a b": "x"`,
	} {
		want[key] = [2]string{"unreadable", "headers"}
		if key == "line-end" || key == "name" {
			want[key] = [2]string{"unreadable", "is not a header"}
		}
		r.writes(foreign{id: key, key: key, header: ", " + header})
	}
	r.writes(foreign{id: "ord-4711", key: "id", messageID: "ord-4711"})
	want["id"] = [2]string{"not-admitted", string(event.NewEventKey("/by-hand", "ord-4711"))}
	r.writes(foreign{id: "good", key: "good"}, foreign{id: "extra", key: "extra", header: `, "x-note": ["a", "b"]`})
	relay := r.quick()
	r.eventually(counts{outbox.Published: 2, outbox.DeadLetter: len(want)})
	r.parked(want)
	bustest.Eventually(r, fade, relay.Health)
	r.wantOnce(len(before) + 2)
}

// timersOfSteps has rows of a consumer's step set and cancel a timer, and others not.
func timersOfSteps(r *rig) {
	names := r.bus.Names()
	at := fmt.Sprintf(`, "Nats-Schedule": %q, "Nats-Schedule-Target": `, event.ScheduleAt(time.Now().Add(time.Hour)))
	target := func(subject string) string { return at + fmt.Sprintf("%q", names.DueSubject(names.Root(subject))) }
	r.writes(
		foreign{id: "1", key: "set", subject: "timer.order.deadline.set", consumer: "order", header: target("events.order.placed.v1.set")},
		foreign{id: "2", key: "anybody", subject: "timer.order.deadline.anybody", header: target("events.order.placed.v1.anybody")},
		foreign{id: "3", key: "another", subject: "timer.order.deadline.another", consumer: "payment", header: target("events.order.placed.v1.another")},
		foreign{id: "4", key: "elsewhere", subject: "timer.order.deadline.elsewhere", consumer: "order", header: target("state.order.elsewhere")},
		foreign{id: "5", key: "erase", subject: "timer.order.deadline.erase", consumer: "order", header: `, "Nats-Rollup": "all", "Nats-TTL": "5s"`},
	)
	// What cancels is no event.
	r.exec("INSERT INTO outbox (message_id, subject, key, headers, consumer) VALUES ('c', $1, 'cancel', $2, 'order')",
		names.TimerSubject("order", "deadline", "cancel"), `{"Nats-Rollup": "sub", "Nats-TTL": "5s"}`)
	r.quick()
	r.eventually(counts{outbox.Published: 2, outbox.DeadLetter: 4})
	r.parked(map[string][2]string{
		"anybody": {"not-admitted", "subject"}, "another": {"not-admitted", "timer.payment"}, "elsewhere": {"not-admitted", "belongs on"},
		"erase": {"not-admitted", "Nats-Rollup"},
	})
}

// withoutTimers has a step's timer wait for the stream of the timers, which an
// upgrade has not made yet.
func withoutTimers(r *rig) {
	names := r.bus.Names()
	r.ok(r.bus.JetStream().DeleteStream(r.Context(), names.TimersStream()))
	r.exec("INSERT INTO outbox (message_id, subject, key, headers, consumer) VALUES ('c', $1, 'cancel', $2, 'order')",
		names.TimerSubject("order", "deadline", "cancel"), `{"Nats-Rollup": "sub", "Nats-TTL": "5s"}`)
	registry := prometheus.NewRegistry()
	relay := r.relay(outbox.RelayConfig{MaxAttempts: 1, BaseDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond, Metrics: registry})
	r.metric(registry, "farandole_outbox_failures_total", func(tries float64) bool { return tries >= 2 })
	r.unhealthy(relay, bus.ErrNoStream)
	bustest.Provision(r, r.bus, topology.Config{})
	r.eventually(counts{outbox.Published: 1})
}

// nowhere has rows of subjects that no stream stores, while others have one: with
// nobody there, and with somebody who hears them and says nothing.
func nowhere(listened bool) func(*rig) {
	return func(r *rig) {
		r.change(func(c *jetstream.StreamConfig) { c.Subjects[0] = r.bus.Names().Root("events.order.>") })
		class := "no-stream"
		if listened {
			class = "unanswered"
			_, err := r.bus.Conn().Subscribe(r.bus.Names().EventsFilter(), func(*nats.Msg) {})
			r.ok(err)
			r.ok(r.bus.Conn().Flush())
		}
		r.writes(foreign{id: "1", key: "mistyped", kind: "oder.placed.v1"}, foreign{id: "2", key: "mistyped", kind: "order.placed.v1"})
		relay := r.quick()
		for i := 0; r.count("outbox WHERE status = 'DEAD_LETTER'") == 0; i++ {
			r.writes(foreign{id: fmt.Sprint("other-", i), key: fmt.Sprint("other-", i)})
			r.becomes(1, fmt.Sprintf("outbox WHERE key = 'other-%d' AND status = 'PUBLISHED'", i))
			if err := relay.Health(); err != nil && !listened {
				r.Errorf("unhealthy because of one row: %v", err)
			}
		}
		r.becomes(1, "outbox WHERE key = 'mistyped' AND status = 'PUBLISHED'")
		r.parked(map[string][2]string{"mistyped": {class, ""}})
	}
}

// takenIDs has rows whose message ids the stream knows: of the same event, of one
// with other data, and of another one that somebody has published before.
func takenIDs(r *rig) {
	r.writes(foreign{id: "1", key: "same"}, foreign{id: "2", key: "other-data"}, foreign{id: "3", key: "forged"})
	publish := func(id, key, source, data string) {
		m := &nats.Msg{Subject: r.bus.Names().EventSubject(placed, event.Key(key)), Data: []byte(data), Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {source}, "ce-type": {placed}, "ce-partitionkey": {key},
			nats.MsgIdHdr: {string(event.NewEventKey("/by-hand", id))},
		}}
		p, err := r.bus.Send(r.Context(), m)
		r.ok(err)
		_, err = p.Wait(r.Context())
		r.ok(err)
	}
	publish("1", "same", "/by-hand", "{ }")
	publish("2", "other-data", "/by-hand", `{"a":1}`)
	publish("3", "forged", "/mallory", "{}")
	relay := r.quick()
	r.eventually(counts{outbox.Published: 1, outbox.DeadLetter: 2})
	r.parked(map[string][2]string{"other-data": {"id-taken", "there 7 bytes"}, "forged": {"id-taken", `from "/mallory" with id "3"`}})
	bustest.Eventually(r, fade, relay.Health)
}

// otherTypes has rows of types that their relay is not for.
func otherTypes(r *rig) {
	r.writes(
		foreign{id: "1", key: "listed"}, foreign{id: "2", key: "other", kind: "order.cancelled.v1"},
		foreign{id: "3", key: "step", kind: "order.cancelled.v1", consumer: "order"},
	)
	r.relay(outbox.RelayConfig{Types: []event.Type{"order.refunded.v1", placed}, MaxAttempts: 1})
	r.eventually(counts{outbox.Published: 2, outbox.DeadLetter: 1})
	r.parked(map[string][2]string{"other": {"not-admitted", "order.refunded.v1 order.placed.v1"}})
}

// absurdTimes has a writer set times that no relay would: they hold nothing back.
func absurdTimes(r *rig) {
	r.writes(foreign{id: "1", key: "k"}, foreign{id: "2", key: "k"}, foreign{id: "3", key: "l"}, foreign{id: "4", key: "l"})
	r.exec("UPDATE outbox SET due_at = " + r.past(-2*3600) + " WHERE id = 1")
	r.exec("UPDATE outbox SET due_at = " + r.past(-10*366*86400) + ", status = 'PROCESSING', owner = 'nobody', attempts = 2147483647 WHERE id = 3")
	r.quick()
	r.eventually(counts{outbox.Published: 4})
	var order []string
	for _, m := range r.stored() {
		order = append(order, m.id)
	}
	got, err := json.Marshal(order)
	r.ok(err)
	for _, pair := range [][2]string{{"1", "2"}, {"3", "4"}} {
		a, b := strings.Index(string(got), string(event.NewEventKey("/by-hand", pair[0]))), strings.Index(string(got), string(event.NewEventKey("/by-hand", pair[1])))
		if a < 0 || b < a {
			r.Errorf("row %s comes before row %s: %s", pair[1], pair[0], got)
		}
	}
}
