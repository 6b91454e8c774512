package outboxtest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// smallPayload is less than [rig.large] makes.
const smallPayload = 8 << 10

func payload(n int32) func(*server.Options) {
	return func(o *server.Options) { o.MaxPayload = n }
}

// large is an event that a server with smallPayload refuses.
func (r *rig) large(key, id string) event.Event {
	r.Helper()
	return r.eventOf(key, id, fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), 10<<10)))
}

// unsendable has 100 rows at the head that can never be sent, and batches of 100.
func unsendable(r *rig) {
	const n = 100
	bad := keys("bad-", n)
	events := make([]event.Event, n)
	for i, key := range bad {
		events[i] = r.large(key, key)
	}
	r.add(events...)
	for i, broken := range []string{
		"subject = 'not a subject'", "subject = 'events.*.>'", "subject = '$JS.API.STREAM.DELETE.X'", "subject = ''",
		"headers = '{'", `headers = '{"a b":"c"}'`, `headers = '{"a":"b\nc"}'`, `headers = '{"a":1}'`, "message_id = ''",
	} {
		r.exec("UPDATE outbox SET "+broken+" WHERE key = $1", bad[i])
	}
	r.exec("UPDATE outbox SET subject = $1 WHERE key = 'bad-9'", fmt.Sprintf("events.%5000d", 1))
	r.add(r.events(1, keys("good-", n)...)...)

	// The bad ones wait for their next try: good ones go out. A wait is drawn from nothing
	// to an hour, so now and then one is tried again already.
	relay := r.relay(outbox.RelayConfig{Batch: 100, MaxAttempts: 100, BaseDelay: time.Hour, MaxDelay: time.Hour})
	r.becomes(n, "outbox WHERE status = 'PUBLISHED' AND key LIKE 'good-%'")
	r.becomes(n, "outbox WHERE status = 'PENDING' AND key LIKE 'bad-%' AND attempts > 0")
	relay.stop()
	tried := r.number("SELECT sum(attempts) FROM outbox WHERE status = 'PENDING'")

	// They are parked after as many tries as they may have.
	r.exec("UPDATE outbox SET due_at = NULL WHERE status = 'PENDING'")
	registry := prometheus.NewRegistry()
	relay = r.relay(outbox.RelayConfig{
		Batch: 100, MaxAttempts: 3, BaseDelay: time.Millisecond, Poll: 50 * time.Millisecond, Metrics: registry,
	})
	r.eventually(counts{outbox.Published: n, outbox.DeadLetter: n})
	r.says(&relay.log, "row is parked")
	bustest.Eventually(r, soon, relay.Health)
	for name, want := range map[string]float64{
		"farandole_outbox_parked_total": n, "farandole_outbox_failures_total": float64(3*n - tried), "farandole_outbox_rows": n, "farandole_outbox_healthy": 1,
	} {
		r.metric(registry, name, func(got float64) bool { return got == want })
	}

	var ids []string
	for _, p := range r.parkedRows(dlq.Filter{}) {
		if len(p.Attempts) != 3 || p.Class == "" || p.Error == "" || p.Reason != event.ReasonExhausted {
			r.Errorf("the story of row %s is %+v", p.ID, p.Attempts)
		}
		if p.Class == "too-large" {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) != n-10 {
		r.Errorf("%d rows are parked as too large, want %d", len(ids), n-10)
	}
	r.server.Reload(r, payload(1<<20))
	r.server.Restart(r) // the client asks for the limit when it connects
	bustest.Eventually(r, soon, func() bool { return r.bus.Conn().MaxPayload() == 1<<20 })
	for _, id := range ids {
		_, err := r.outbox.Parked().Replay(r.Context(), dlq.Ref{ID: id}, dlq.ReplayOptions{})
		r.ok(err)
	}
	r.eventually(counts{outbox.Published: 2*n - 10, outbox.DeadLetter: 10})
	r.wantOnce(2*n - 10)
}

// failingRow has a row in the middle of its key refused.
func failingRow(r *rig) {
	r.add(r.event("held", "held-0"), r.large("held", "held-bad"), r.event("held", "held-1"), r.event("held", "held-2"))
	free := keys("free-", 20)
	r.add(r.events(5, free...)...)
	relay := r.relay(outbox.RelayConfig{Batch: 10, MaxAttempts: 100, BaseDelay: time.Hour, MaxDelay: time.Hour})
	r.becomes(100, "outbox WHERE status = 'PUBLISHED' AND key LIKE 'free-%'")
	r.add(r.event("held", "held-3"))
	r.add(r.events(1, "more")...)
	r.becomes(1, "outbox WHERE status = 'PUBLISHED' AND key = 'more'")
	relay.stop()
	if got := r.count("outbox WHERE status = 'PENDING' AND key = 'held'"); got != 4 {
		r.Errorf("%d rows of the key wait, want the refused one and what follows", got)
	}

	// Parked, it holds back nothing any more.
	r.exec("UPDATE outbox SET due_at = NULL WHERE due_at IS NOT NULL")
	r.relay(outbox.RelayConfig{MaxAttempts: 1})
	r.eventually(counts{outbox.Published: 105, outbox.DeadLetter: 1})
	r.wantOrder(r.wantOnce(105))
}

// fallingDue has the first row of many keys fall due one after another, while a
// relay looks again and again: the second ones never come first.
func fallingDue(r *rig) {
	const n = 400
	r.add(r.events(2, keys("ord-", n)...)...)
	r.exec("UPDATE outbox SET due_at = "+r.soon()+" WHERE id <= $1", n)
	r.relay(outbox.RelayConfig{Batch: 1000})
	bustest.Eventually(r, soon, func() bool {
		r.outbox.Wake()
		return r.count("outbox WHERE status <> 'PUBLISHED'") == 0
	})
	r.wantOrder(r.wantOnce(2 * n))
}

// largeRows are more than a batch has memory for.
func largeRows(r *rig) {
	const n = 8
	data := fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), 900<<10))
	for i := range n {
		key := fmt.Sprint("ord-", i%2)
		r.add(r.eventOf(key, fmt.Sprint(key, "-", i), data))
	}
	r.relay(outbox.RelayConfig{})
	r.eventually(counts{outbox.Published: n})
	r.wantOnce(n)
}
