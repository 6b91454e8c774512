package outboxtest

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// exactData has a database keep what JSON types and texts refuse.
func exactData(r *rig) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	events := map[string]event.Event{}
	for id, data := range map[string][]byte{
		"escaped NUL":    []byte(`{"t":"a\u0000b"}`),
		"lone surrogate": []byte(`{"t":"\ud800"}`),
		"binary":         binary,
		"NUL":            {0},
		"not UTF-8":      {0xff, 0xfe, 0xfd},
		"backslashes":    []byte(`\x00 \\ '' "`),
		"none":           nil,
		"large":          bytes.Repeat([]byte("0123456789abcdef"), 20_000),
	} {
		d := event.Draft{Type: "order.placed.v1", Key: event.Key("ü/" + id), ID: id, ContentType: "application/octet-stream", Data: data}
		if bytes.HasPrefix(data, []byte("{")) {
			d.ContentType = event.ContentTypeJSON
		}
		e, err := r.outbox.Seal(d)
		r.ok(err)
		e.SetExtension("note", "ä % \" € \U0001f600")
		r.commit(func(tx *sql.Tx) {
			r.execIn(tx, "INSERT INTO business (id) VALUES ($1)", id)
			r.ok(r.outbox.Add(r.Context(), tx, e))
		})
		events[id] = e
	}
	r.relay(outbox.RelayConfig{})
	r.eventually(counts{outbox.Published: len(events)})
	r.want(map[string]int{"business": len(events)})
	for id, e := range events {
		want, err := r.bus.Names().Message(e)
		r.ok(err)
		r.same(id, r.storedOn(want.Subject), want)
	}
}

// storedOn is the one message that was published on a subject.
func (r *rig) storedOn(subject string) *jetstream.RawStreamMsg {
	r.Helper()
	m, err := r.bus.Latest(r.Context(), r.bus.Names().EventsStream(), r.bus.Names().Stored(subject, event.DefaultPartitions))
	r.ok(err)
	return m
}

// same compares a stored message with what publishing the event directly sends.
func (r *rig) same(what string, got *jetstream.RawStreamMsg, want *nats.Msg) {
	r.Helper()
	if !bytes.Equal(got.Data, want.Data) {
		r.Errorf("%s: data %.200q, want %.200q", what, got.Data, want.Data)
	}
	for _, name := range []string{"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"} {
		got.Header.Del(name) // of the answer, not of the message
	}
	if fmt.Sprint(got.Header) != fmt.Sprint(want.Header) {
		r.Errorf("%s: headers\n%v, want\n%v", what, got.Header, want.Header)
	}
}

// byHand runs what the documentation tells those who write in other languages.
func byHand(r *rig) {
	e, err := r.bus.Names().Seal(event.Draft{
		Type: "order.placed.v1", Key: "ord-1", ID: "7d0c", ContentType: event.ContentTypeJSON, Data: []byte(`{"order_id":"ord-1"}`),
	}, "/shop")
	r.ok(err)
	e.SetTime(time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC))
	want, err := r.bus.Names().Message(e)
	r.ok(err)
	r.relay(outbox.RelayConfig{})
	r.exec(r.documented())
	r.eventually(counts{outbox.Published: 1})
	r.same("by hand", r.storedOn(want.Subject), want)
}

// documented is the INSERT that docs/outbox.md shows for this database, but for
// the prefix of the test's names.
func (r *rig) documented() string {
	r.Helper()
	_, file, _, _ := runtime.Caller(0)
	doc, err := os.ReadFile(filepath.Join(filepath.Dir(file), "..", "..", "..", "docs", "outbox.md"))
	r.ok(err)
	marker := map[outbox.Dialect]string{outbox.SQLite: "SQLite", outbox.Postgres: "Postgres"}[r.Dialect]
	_, text, found := strings.Cut(string(doc), "<!-- insert: "+marker+" -->\n```sql\n")
	statement, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		r.Fatalf("docs/outbox.md shows no INSERT for %s", marker)
	}
	return strings.ReplaceAll(statement, "'events.", "'"+r.bus.Names().Root("events."))
}
