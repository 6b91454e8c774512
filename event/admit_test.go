package event_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

var shop = event.Names{Prefix: "shop", TypePrefix: "com.acme."}

// admitted is the message of an event.
func admitted(t *testing.T) *nats.Msg {
	t.Helper()
	e, err := shop.Seal(event.Draft{Type: "order.placed.v1", Key: "ord/1", ID: "ord-4711", Data: []byte("{}"), ContentType: event.ContentTypeJSON}, "/shop")
	if err != nil {
		t.Fatal(err)
	}
	m, err := shop.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// set and cancellation are messages of a timer.
func set(t *testing.T) *nats.Msg {
	t.Helper()
	m := admitted(t)
	m.Header[jetstream.ScheduleHeader] = []string{event.ScheduleAt(time.Now().Add(time.Hour))}
	m.Header[jetstream.ScheduleTargetHeader] = []string{"shop.due" + strings.TrimPrefix(m.Subject, "shop")}
	m.Subject = shop.TimerSubject("order", "deadline", "ord/1")
	return m
}

func cancellation(*testing.T) *nats.Msg {
	return &nats.Msg{
		Subject: shop.TimerSubject("order", "deadline", "ord/1"),
		Header:  nats.Header{jetstream.MsgRollup: {"sub"}, jetstream.MsgTTLHeader: {"5s"}, nats.MsgIdHdr: {"7f6a"}},
	}
}

// spoiled wants each change of a message refused, by a text that says this.
func spoiled(t *testing.T, fresh func(*testing.T) *nats.Msg, admit func(*nats.Msg) error, changes map[string]func(*nats.Msg)) {
	t.Helper()
	if err := admit(fresh(t)); err != nil {
		t.Fatalf("unchanged: %v", err)
	}
	for says, change := range changes {
		m := fresh(t)
		m.Header = maps.Clone(m.Header)
		change(m)
		if err := admit(m); !errors.Is(err, event.ErrNotAdmitted) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func header(name string, values ...string) func(*nats.Msg) {
	return func(m *nats.Msg) { m.Header[name] = values }
}

func subject(s string) func(*nats.Msg) { return func(m *nats.Msg) { m.Subject = s } }

func TestAdmitEvent(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*nats.Msg){
		"want the event key":                           header(nats.MsgIdHdr, "ord-4711"),
		string(event.NewEventKey("/shop", "ord-4711")): header(nats.MsgIdHdr),
		"source \"/shop\" and id \"ord-4711\"":         header(nats.MsgIdHdr, string(event.NewEventKey("/shop", "ord-4711")), "x"),
		"belongs on \"shop.events.order.placed":        subject("shop.events.order.cancelled.v1.ord=2F1"),
		"v1.ord=2F1\"":                                 subject("shop.events.order.placed.v1.ord-2"),
		"subject \"events.order":                       subject("events.order.placed.v1.ord=2F1"),
		"cannot decode":                                header("ce-id"),
		"subject \"state.":                             subject("state.inventory.sku-widget"),
		"type":                                         header("ce-type", "placed"),
	}
	for _, name := range []string{
		"Nats-Rollup", "nats-rollup", "Nats-TTL", "Nats-Schedule", "Nats-Schedule-Target", "Nats-Batch-Id", "Nats-Expected-Last-Sequence",
		"Nats-Required-Api-Level", "Nats-Incr", "Nats-Anything",
	} {
		changes["header \""+name] = header(name, "all")
	}
	for _, root := range []string{"$KV.dedup.x", "dlq.order.decode.x", "ledger.order.x", "redrive.order.order.placed.v1.k", "timer.order.deadline.k"} {
		changes["subject \"shop."+root] = subject("shop." + root)
	}
	changes["headers \"Nats-Batch-Id, Nats-Batch-Sequence, Nats-TTL, nats-rollup\""] = func(m *nats.Msg) {
		for _, name := range []string{"Nats-TTL", "nats-rollup", "Nats-Batch-Sequence", "Nats-Batch-Id"} {
			m.Header[name] = []string{"1"}
		}
	}
	spoiled(t, admitted, shop.AdmitEvent, changes)
}

func TestAdmitTimer(t *testing.T) {
	t.Parallel()
	admit := func(m *nats.Msg) error { return shop.AdmitTimer("order", m) }
	spoiled(t, set, admit, map[string]func(*nats.Msg){
		"want one instant":              header(jetstream.ScheduleHeader, "@every 1s"),
		"belongs on":                    header(jetstream.ScheduleTargetHeader, "shop.due.state.inventory.ord=2F1"),
		"want \"shop.due.events.":       header(jetstream.ScheduleTargetHeader, "shop.events.order.placed.v1.ord=2F1"),
		"has another key":               header(jetstream.ScheduleTargetHeader, "shop.events.order.placed.v1.ord-2"),
		"want the event key":            header(nats.MsgIdHdr, "x"),
		"those that set a timer":        header(jetstream.MsgRollup, "all"),
		"Nats-Schedule-Source":          header("Nats-Schedule-Source", "shop.state.x.y"),
		"want timer.order.<name>.<key>": subject("shop.timer.payment.deadline.ord=2F1"),
		"cannot decode":                 header("ce-id"),
	})
	spoiled(t, cancellation, admit, map[string]func(*nats.Msg){
		"headers Nats-": header(jetstream.MsgRollup, "all"),
		"want those":    header(jetstream.MsgTTLHeader, "9000h"),
		"cancel one":    func(m *nats.Msg) { m.Data = []byte("x") },
		"subject":       subject("shop.timer.order.deadline.a.b"),
	})
}
