package event_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/farandole/farandole/event"
)

type placed struct {
	Amount int64 `json:"amount"`
}

var orderPlaced = event.Define[placed]("order.placed.v1")

func TestSealGivesTheDraftItsIdentity(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 10, 0, 0, 5, time.FixedZone("", 3600))
	draft := orderPlaced.New("ord-1", placed{Amount: 2500})
	draft.Subject = " orders/1 "
	draft.Extensions = map[string]string{"region": "eu", "empty": ""}
	e, err := draft.Seal(event.Identity{
		ID: "e-1", Source: "HTTP://Shop/", Time: at, Correlation: "saga-1", Causation: "e-0",
		Traceparent: "00-a-b-01", Tracestate: "v=1", TypePrefix: "com.acme.",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		event.ExtKey: "ord-1", event.ExtCorrelation: "saga-1", event.ExtCausation: "e-0",
		event.ExtTraceparent: "00-a-b-01", event.ExtTracestate: "v=1", "region": "eu", "empty": "",
	}
	if !maps.Equal(e.Extensions(), want) {
		t.Errorf("extensions = %v, want %v", e.Extensions(), want)
	}
	if e.ID() != "e-1" || e.Source() != "HTTP://Shop/" || e.Type() != "com.acme.order.placed.v1" ||
		e.Subject() != " orders/1 " || e.DataContentType() != event.ContentTypeJSON ||
		!e.Time().Equal(at) || string(e.Data()) != `{"amount":2500}` {
		t.Errorf("sealed %s", describe(e))
	}
	if got := event.EventKeyOf(e); got != event.NewEventKey("HTTP://Shop/", "e-1") {
		t.Errorf("event key %s", got)
	}
	data, err := orderPlaced.Decode(e)
	if err != nil || data.Amount != 2500 {
		t.Errorf("Decode = %+v, %v", data, err)
	}
}

func TestSealChoosesTheCorrelation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ draft, identity, want string }{
		{"", "", "key"},
		{"", "identity", "identity"},
		{"draft", "identity", "draft"},
	} {
		draft := orderPlaced.New("key", placed{})
		draft.Correlation = tt.draft
		e, err := draft.Seal(event.Identity{ID: "1", Source: "/s", Correlation: tt.identity})
		if err != nil {
			t.Fatal(err)
		}
		if got := event.Extension(e, event.ExtCorrelation); got != tt.want {
			t.Errorf("draft %q, identity %q: correlation %q, want %q", tt.draft, tt.identity, got, tt.want)
		}
	}
}

func TestSealLeavesOutWhatIsNotGiven(t *testing.T) {
	t.Parallel()
	e, err := event.Draft{Type: "order.placed.v1", Key: "k"}.Seal(event.Identity{ID: "1", Source: "/s"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := e.Context.(*cloudevents.EventContextV1)
	if ctx.Time != nil || ctx.Subject != nil || ctx.DataContentType != nil || ctx.DataSchema != nil || e.Data() != nil {
		t.Errorf("sealed %s", describe(e))
	}
	if len(ctx.Extensions) != 2 {
		t.Errorf("extensions = %v", ctx.Extensions)
	}
}

func TestSealRefuses(t *testing.T) {
	t.Parallel()
	identity := event.Identity{ID: "1", Source: "/s"}
	legal := orderPlaced.New("k", placed{})
	for name, tt := range map[string]struct {
		draft    func(d *event.Draft)
		identity func(i *event.Identity)
		sentinel error
		reason   string
	}{
		"type":         {draft: func(d *event.Draft) { d.Type = "order" }, sentinel: event.ErrInvalidType, reason: `"order"`},
		"key":          {draft: func(d *event.Draft) { d.Key = "" }, sentinel: event.ErrInvalidEvent, reason: "empty key"},
		"control key":  {draft: func(d *event.Draft) { d.Key = "a\nb" }, sentinel: event.ErrInvalidEvent, reason: "partitionkey: character U+000A"},
		"subject":      {draft: func(d *event.Draft) { d.Subject = "\xff" }, sentinel: event.ErrInvalidEvent, reason: "subject: not valid UTF-8"},
		"content type": {draft: func(d *event.Draft) { d.ContentType = "json" }, sentinel: event.ErrInvalidEvent, reason: "datacontenttype: not a media type"},
		"own field": {
			draft:    func(d *event.Draft) { d.Extensions = map[string]string{event.ExtCorrelation: "x"} },
			sentinel: event.ErrInvalidEvent, reason: `"correlationid" has a field of its own`,
		},
		"id":           {identity: func(i *event.Identity) { i.ID = "" }, sentinel: event.ErrInvalidEvent, reason: "id: empty"},
		"source":       {identity: func(i *event.Identity) { i.Source = "" }, sentinel: event.ErrInvalidEvent, reason: "source: empty"},
		"source uri":   {identity: func(i *event.Identity) { i.Source = ":%zz" }, sentinel: event.ErrInvalidEvent, reason: `source: not a URI-reference: ":%zz"`},
		"year 10000":   {identity: func(i *event.Identity) { i.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, sentinel: event.ErrInvalidEvent, reason: "time: "},
		"cause, trace": {identity: func(i *event.Identity) { i.Causation, i.Traceparent = "\x7f", "\x00" }, sentinel: event.ErrInvalidEvent, reason: "causationid: character U+007F is not allowed: \"\\x7f\"; traceparent: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, i := legal, identity
			if tt.draft != nil {
				tt.draft(&d)
			}
			if tt.identity != nil {
				tt.identity(&i)
			}
			e, err := d.Seal(i)
			if !errors.Is(err, tt.sentinel) || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("Seal = %v, want %v with %q", err, tt.sentinel, tt.reason)
			}
			if e.Context != nil {
				t.Errorf("a refused draft gave %s", describe(e))
			}
			if _, err2 := (event.Names{}).SealedMessage(d, i); err2 == nil || err2.Error() != err.Error() {
				t.Errorf("SealedMessage = %v, want %v", err2, err)
			}
		})
	}
}

func TestSealedMessageIsThatOfTheSealedEvent(t *testing.T) {
	t.Parallel()
	full := orderPlaced.New("ord 1", placed{Amount: 2500})
	full.Subject, full.Extensions = " orders/1 ", map[string]string{"region": "eu", event.ExtTracestate: "own"}
	for name, n := range map[string]event.Names{"bare": {}, "prefixed": {Prefix: "shop", TypePrefix: "com.acme."}} {
		for _, d := range []event.Draft{full, {Type: "order.placed.v1", Key: "k"}} {
			id := event.Identity{
				ID: "e-1", Source: "HTTP://Shop/ä", Time: time.Date(2026, 3, 1, 10, 0, 0, 5, time.FixedZone("", 3600)),
				Correlation: "saga-1", Causation: "e-0", Traceparent: "00-a-b-01", Tracestate: "v=1", TypePrefix: n.TypePrefix,
			}
			e, err := d.Seal(id)
			if err != nil {
				t.Fatal(err)
			}
			want, err := n.Message(e)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := n.SealedMessage(d, id); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: message %v, %v, want %v", name, got, err, want)
			}
		}
	}
}

// What is allocated is the message: its map of headers, their values, the subject,
// the message id, the time.
func TestSealedMessageAllocatesLittle(t *testing.T) { //nolint:paralleltest // testing.AllocsPerRun counts the whole process
	draft, id := orderPlaced.New("ord-1", placed{}), event.Identity{ID: "e-1", Source: "/shop", Time: time.Now(), Causation: "e-0"}
	const most = 9
	allocations := testing.AllocsPerRun(100, func() {
		if _, err := (event.Names{Prefix: "shop"}).SealedMessage(draft, id); err != nil {
			t.Fatal(err)
		}
	})
	if allocations > most {
		t.Errorf("%v allocations, want at most %d", allocations, most)
	}
}

func TestSealReturnsTheErrorOfEncodingData(t *testing.T) {
	t.Parallel()
	draft := event.Define[any]("order.placed.v1").New("k", func() {})
	if _, err := draft.Seal(event.Identity{ID: "1", Source: "/s"}); !errors.Is(err, event.ErrInvalidEvent) || !strings.Contains(err.Error(), "encode data") {
		t.Errorf("Seal = %v", err)
	}
}

func TestDefinitionDecodeRefusesDataThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"", "{", `{"amount":"x"}`, `{"amount":1.5}`, `[]`} {
		e := sample(t)
		e.DataEncoded = []byte(data)
		if _, err := orderPlaced.Decode(e); !errors.Is(err, event.ErrDecode) || !strings.Contains(err.Error(), "order.placed.v1") {
			t.Errorf("Decode of %q = %v", data, err)
		}
	}
}

func TestPartitionKeyFallsBack(t *testing.T) {
	t.Parallel()
	for want, headers := range map[event.Key][]string{
		"p": {"ce-partitionkey", "p", "ce-correlationid", "c"},
		"c": {"ce-partitionkey", "", "ce-correlationid", "c"},
		"A": nil,
	} {
		if got := event.PartitionKey(mustDecode(t, binary(headers...), nil)); got != want {
			t.Errorf("PartitionKey = %q, want %q", got, want)
		}
	}
}

func TestExtensionIsInCanonicalForm(t *testing.T) {
	t.Parallel()
	at := types.Timestamp{Time: time.Date(2026, 3, 1, 10, 0, 0, 0, time.FixedZone("", 3600))}
	e := sample(t)
	for name, v := range map[string]any{
		"b": true, "n": int32(-5), "bytes": []byte{0xFB, 0xEF}, "at": at, "uri": types.ParseURI("https://x/"), "ref": types.ParseURIRef("/x"),
	} {
		e.SetExtension(name, v)
	}
	for name, want := range map[string]string{
		"b": "true", "n": "-5", "bytes": "++8=", "at": "2026-03-01T10:00:00+01:00", "uri": "https://x/", "ref": "/x", "absent": "",
	} {
		if got := event.Extension(e, name); got != want {
			t.Errorf("Extension(%s) = %q, want %q", name, got, want)
		}
	}
	if got := event.Extension(event.Event{}, "x"); got != "" {
		t.Errorf("Extension of nothing = %q", got)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	seal := func(at string) (event.Event, error) {
		d := event.Draft{Type: "order.placed.v1", Key: "k", Extensions: map[string]string{event.ExtExpiry: at}}
		return d.Seal(event.Identity{ID: "a", Source: "/s"})
	}
	e, err := seal("2026-01-02t03:04:05.5+01:00")
	if at, ok := event.Expiry(e); err != nil || !ok || !at.Equal(time.Date(2026, 1, 2, 2, 4, 5, 5e8, time.UTC)) {
		t.Errorf("%v, %t, %v", at, ok, err)
	}
	for _, illegal := range []string{"2026-01-02 03:04:05Z", "2026-01-02T03:04:05", "tomorrow", ""} {
		if _, err := seal(illegal); !errors.Is(err, event.ErrInvalidEvent) || !strings.Contains(err.Error(), event.ExtExpiry) {
			t.Errorf("%q: %v, want ErrInvalidEvent that names the attribute", illegal, err)
		}
	}
	if at, ok := event.Expiry(with("")); ok {
		t.Errorf("an event without it expires at %v", at)
	}
}
