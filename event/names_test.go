package event_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/farandole/farandole/event"
)

func TestTypeValidate(t *testing.T) {
	t.Parallel()
	for _, legal := range []event.Type{
		"order.placed.v1", "o.p.v99999", "order-x.placed_late.v12", event.Type(strings.Repeat("a", 255-len(".b.v1")) + ".b.v1"),
	} {
		if err := legal.Validate(); err != nil {
			t.Errorf("%s: %v", legal, err)
		}
	}
	for _, illegal := range []event.Type{
		"", "order", "order.placed", "order.placed.1", "order.placed.v", "order.placed.v01", "order.placed.v100000", "order.placed.V1",
		"order.placed.v+1", "order.placed.v1_0", "order.placed.v1.", "order.placed.v1\n", "order.placed.v1.v1", ".placed.v1",
		"1order.placed.v1", "order.-placed.v1", "order..v1", "orDer.placed.v1", "order.plåced.v1", event.Type(strings.Repeat("a", 256-len(".b.v1")) + ".b.v1"),
	} {
		if err := illegal.Validate(); !errors.Is(err, event.ErrInvalidType) {
			t.Errorf("%q: %v, want ErrInvalidType", illegal, err)
		}
	}
}

func TestConsumerValidate(t *testing.T) {
	t.Parallel()
	for _, legal := range []event.Consumer{"a", "payment", "payment-2", event.Consumer(strings.Repeat("a", 32))} {
		if err := legal.Validate(); err != nil {
			t.Errorf("%s: %v", legal, err)
		}
	}
	for _, illegal := range []event.Consumer{"", "-a", "1a", "A", "a.b", "a_b", "a b", "a*", "a\n", event.Consumer(strings.Repeat("a", 33))} {
		if err := illegal.Validate(); !errors.Is(err, event.ErrInvalidConsumer) {
			t.Errorf("%q: %v, want ErrInvalidConsumer", illegal, err)
		}
	}
}

func TestNamesValidate(t *testing.T) {
	t.Parallel()
	for _, legal := range []event.Names{{}, {Prefix: "shop"}, {TypePrefix: "com.acme."}, {Prefix: "s-1", TypePrefix: "acme."}} {
		if err := legal.Validate(); err != nil {
			t.Errorf("%+v: %v", legal, err)
		}
	}
	for _, illegal := range []event.Names{
		{Prefix: "Shop"},
		{Prefix: "a.b"},
		{Prefix: "$JS"},
		{Prefix: strings.Repeat("a", 33)},
		{TypePrefix: "com.acme"},
		{TypePrefix: "."},
		{TypePrefix: "com..acme."},
		{TypePrefix: "Com."},
	} {
		if err := illegal.Validate(); !errors.Is(err, event.ErrInvalidName) {
			t.Errorf("%+v: %v, want ErrInvalidName", illegal, err)
		}
	}
}

func TestNamesMakesEverySubject(t *testing.T) {
	t.Parallel()
	plain := event.Names{}
	shop := event.Names{Prefix: "shop", TypePrefix: "com.acme."}
	tests := []struct{ name, got, want string }{
		{"events stream", plain.EventsStream(), "EVENTS"},
		{"events stream, prefix", shop.EventsStream(), "shop-EVENTS"},
		{"dead letters stream", plain.DLQStream(), "DLQ"},
		{"dead letters stream, prefix", shop.DLQStream(), "shop-DLQ"},
		{"bucket", plain.Bucket("dedup"), "dedup"},
		{"bucket, prefix", shop.Bucket("dedup"), "shop-dedup"},
		{"event", plain.EventSubject("order.placed.v1", "ord-7f3a"), "events.order.placed.v1.ord-7f3a"},
		{"event, escaped", plain.EventSubject("order.placed.v1", "a.b *"), "events.order.placed.v1.a=2Eb=20=2A"},
		{"event, prefix", shop.EventSubject("order.placed.v1", "k"), "shop.events.order.placed.v1.k"},
		{"event, type prefix", shop.EventSubject("com.acme.order.placed.v1", "k"), "shop.events.order.placed.v1.k"},
		{"type filter", shop.TypeFilter("com.acme.order.placed.v1"), "shop.events.order.placed.v1.>"},
		{"events filter", shop.EventsFilter(), "shop.events.>"},
		{"redrive", plain.RedriveSubject("payment", "events.order.placed.v1.k"), "redrive.payment.order.placed.v1.k"},
		{"redrive, prefix", shop.RedriveSubject("payment", "shop.events.order.placed.v1.k"), "shop.redrive.payment.order.placed.v1.k"},
		{"redrive of a redrive", plain.RedriveSubject("payment", "redrive.payment.order.placed.v1.k"), "redrive.payment.order.placed.v1.k"},
		{"redrive of a foreign subject", plain.RedriveSubject("payment", "legacy.orders"), "redrive.payment.legacy.orders"},
		{"redrive filter", shop.RedriveFilter("payment"), "shop.redrive.payment.>"},
		{"dead letter", plain.DeadLetterSubject("payment", event.ReasonDecode, "k"), "dlq.payment.decode.k"},
		{"dead letter filter", shop.DeadLetterFilter("", "", ""), "shop.dlq.*.*.*"},
		{"dead letter filter, some", plain.DeadLetterFilter("payment", "", "k"), "dlq.payment.*.k"},
		{"root", shop.Root("ledger.>"), "shop.ledger.>"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, tt.got, tt.want)
		}
	}
}

func TestIsRedriveLooksAtTheConsumer(t *testing.T) {
	t.Parallel()
	shop := event.Names{Prefix: "shop"}
	for subject, want := range map[string]bool{
		"shop.redrive.payment.order.placed.v1.k":   true,
		"shop.redrive.payment-2.order.placed.v1.k": false,
		"redrive.payment.order.placed.v1.k":        false,
		"shop.events.order.placed.v1.k":            false,
	} {
		if got := shop.IsRedrive("payment", subject); got != want {
			t.Errorf("IsRedrive(%s) = %v, want %v", subject, got, want)
		}
	}
}

func TestTypeOfStripsTheTypePrefix(t *testing.T) {
	t.Parallel()
	acme := event.Names{TypePrefix: "com.acme."}
	order := event.Names{TypePrefix: "order."}
	for _, tt := range []struct {
		names event.Names
		typ   string
		want  event.Type // empty: refused
	}{
		{acme, "com.acme.order.placed.v1", "order.placed.v1"},
		{acme, "order.placed.v1", "order.placed.v1"},
		{acme, "com.other.order.placed.v1", ""},
		{event.Names{}, "com.acme.order.placed.v1", ""},
		{order, "order.placed.v1", "order.placed.v1"}, // looks like the prefix, is a domain
		{order, "order.order.placed.v1", "order.placed.v1"},
	} {
		got, err := tt.names.TypeOf(tt.typ)
		if got != tt.want || (err == nil) != (tt.want != "") || err != nil && !errors.Is(err, event.ErrInvalidType) {
			t.Errorf("%+v TypeOf(%s) = %q, %v", tt.names, tt.typ, got, err)
		}
	}
}

func TestEventKeysAreStable(t *testing.T) {
	t.Parallel()
	// The key is on the wire and in ledgers: it must not change between versions.
	if got, want := event.NewEventKey("/shop", "1"), event.EventKey("mvryqroupwkvsahq66qubrxawc36ewqa"); got != want {
		t.Errorf("KeyOf = %s, want %s", got, want)
	}
	stored := time.Unix(0, 1767366245000000006)
	if got, want := event.EventKeyAt("EVENTS", 7, stored), event.EventKey("bksuzrgzwxl23q5ybrvp72fjeujk3cgm"); got != want {
		t.Errorf("KeyOfMessage = %s, want %s", got, want)
	}
	long := strings.Repeat("x", 5000)
	if event.NewEventKey(long, "1") == event.NewEventKey(long, "2") {
		t.Error("long sources: one key for two ids")
	}
}

func TestEscapeKeyGivesDifferentKeysDifferentTokens(t *testing.T) {
	t.Parallel()
	token := regexp.MustCompile(`^([A-Za-z0-9_-]|=[0-9A-F]{2})+$|^=h[a-z2-7]{52}$`)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.StringN(1, -1, -1),
			rapid.StringOfN(rapid.SampledFrom([]rune("aA0=.*> h\u00e9")), 1, 8, -1),
			rapid.StringOfN(rapid.RuneFrom([]rune("a.")), 120, 140, -1),
		)
		a, b := event.Key(text.Draw(t, "a")), event.Key(text.Draw(t, "b"))
		for _, k := range []event.Key{a, b} {
			if got := event.EscapeKey(k); !token.MatchString(got) {
				t.Fatalf("EscapeKey(%q) = %q", k, got)
			}
		}
		if (a == b) != (event.EscapeKey(a) == event.EscapeKey(b)) {
			t.Fatalf("%q and %q: tokens %s and %s", a, b, event.EscapeKey(a), event.EscapeKey(b))
		}
	})
}

func TestEscapeKeyHashesLongKeys(t *testing.T) {
	t.Parallel()
	kept, hashed := event.Key(strings.Repeat("é", 64)), event.Key(strings.Repeat("é", 64)+"x")
	if got := event.EscapeKey(kept); got != strings.Repeat("=C3=A9", 64) {
		t.Errorf("128 bytes: %s", got)
	}
	if got := event.EscapeKey(hashed); len(got) != len("=h")+52 || !strings.HasPrefix(got, "=h") {
		t.Errorf("129 bytes: %s", got)
	}
}

func BenchmarkKeyOf(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		event.NewEventKey("order-service", "0197f3a2-0000-7000-8000-000000000001")
	}
}
