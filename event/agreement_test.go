package event_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/farandole/farandole/event"
)

// about is an event of a type; an empty key means that it has no partitionkey.
func about(tb testing.TB, eventType, key string) event.Event {
	tb.Helper()
	header := map[string][]string{
		"ce-specversion": {"1.0"}, "ce-id": {"a"}, "ce-source": {"/shop"}, "ce-type": {eventType}, "ce-correlationid": {"saga-1"},
	}
	if key != "" {
		header["ce-partitionkey"] = []string{event.EncodeAttribute(key)}
	}
	e, err := event.Decode(header, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestCheckSubject(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 200)
	for name, tt := range map[string]struct {
		names              event.Names
		subject, typ, key  string
		disagrees, another string // what the error says
	}{
		"agrees":                    {subject: "events.order.placed.v1.ord-1", typ: "order.placed.v1", key: "ord-1"},
		"escaped key":               {subject: "events.order.placed.v1.a=20b", typ: "order.placed.v1", key: "a b"},
		"long key":                  {subject: "events.order.placed.v1." + event.EscapeKey(event.Key(long)), typ: "order.placed.v1", key: long},
		"no partition key":          {subject: "events.order.placed.v1.ord-1", typ: "order.placed.v1"},
		"folded":                    {subject: "events.order.placed.v1.17", typ: "order.placed.v1", key: "ord-1"},
		"redrive":                   {subject: "redrive.payment.order.placed.v1.ord-1", typ: "order.placed.v1", key: "ord-1"},
		"redrive, folded":           {subject: "redrive.payment.order.placed.v1.3", typ: "order.placed.v1", key: "ord-1"},
		"prefixes":                  {event.Names{Prefix: "shop", TypePrefix: "com.acme."}, "shop.events.order.placed.v1.k", "com.acme.order.placed.v1", "k", "", ""},
		"type prefix left out":      {event.Names{TypePrefix: "com.acme."}, "events.order.placed.v1.k", "order.placed.v1", "k", "", ""},
		"not ours":                  {subject: "legacy.orders.eu", typ: "com.github.pull.create", key: "k"},
		"another system's":          {event.Names{Prefix: "shop"}, "events.order.placed.v1.k", "order.confirmed.v1", "x", "", ""},
		"another type":              {subject: "events.inventory.rejected.v1.k", typ: "order.placed.v1", key: "k", disagrees: `"order.placed.v1"`, another: `"events.inventory.rejected.v1.k"`},
		"another version":           {subject: "events.order.placed.v2.k", typ: "order.placed.v1", key: "k", disagrees: "type", another: "v2"},
		"another type, folded":      {subject: "events.inventory.rejected.v1.7", typ: "order.placed.v1", key: "k", disagrees: "type", another: "rejected"},
		"redrive of another type":   {subject: "redrive.payment.inventory.rejected.v1.k", typ: "order.placed.v1", key: "k", disagrees: "type", another: "rejected"},
		"another key":               {subject: "events.order.placed.v1.ord-2", typ: "order.placed.v1", key: "ord-1", disagrees: `partitionkey: "ord-1"`, another: "ord-2"},
		"key as it is, not escaped": {subject: "events.order.placed.v1.a=20b", typ: "order.placed.v1", key: "a=20b", disagrees: "partitionkey", another: "a=20b"},
		"redrive of another key":    {subject: "redrive.payment.order.placed.v1.ord-2", typ: "order.placed.v1", key: "ord-1", disagrees: "partitionkey", another: "ord-2"},
		"too few tokens":            {subject: "events.order.placed.v1", typ: "order.placed.v1", key: "v1", disagrees: "type", another: "events.order.placed.v1"},
		"too many tokens":           {subject: "events.order.placed.v1.ord-1.x", typ: "order.placed.v1", key: "x", disagrees: "type", another: "ord-1.x"},
		"redrive of nothing":        {subject: "redrive.payment", typ: "order.placed.v1", key: "k", disagrees: "type", another: "redrive.payment"},
	} {
		err := tt.names.CheckSubject(tt.subject, about(t, tt.typ, tt.key))
		switch {
		case tt.disagrees == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.disagrees == "":
		case !errors.Is(err, event.ErrDecode) || !strings.Contains(err.Error(), tt.disagrees) || !strings.Contains(err.Error(), tt.another):
			t.Errorf("%s: %v, want ErrDecode that tells %s and %s", name, err, tt.disagrees, tt.another)
		}
	}
}

// TestCheckSubject_accepts_what_is_published: whatever the key is.
func TestCheckSubject_accepts_what_is_published(t *testing.T) {
	t.Parallel()
	n := event.Names{Prefix: "shop", TypePrefix: "com.acme."}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[^\x00-\x1f\x7f-\x9f\x{FDD0}-\x{FDEF}\x{FFFE}\x{FFFF}]{1,140}`).Draw(t, "key")
		e, err := n.Seal(event.Draft{Type: "order.placed.v1", Key: event.Key(key), ID: "a"}, "/shop")
		if err != nil {
			t.Skip("not a CloudEvents string")
		}
		m, err := n.Message(e)
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range []string{m.Subject, n.RedriveSubject("payment", m.Subject)} {
			if err := n.CheckSubject(subject, e); err != nil {
				t.Fatal(err)
			}
		}
	})
}
