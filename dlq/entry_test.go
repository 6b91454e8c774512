package dlq

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

func TestParseEntry_takes_letters_of_other_tools_and_damaged_ones(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"shop.dlq.payment.exhausted.k", "shop.dlq.payment.exhausted.k.more", "shop.dlq.payment", "shop.dlq.", "other",
	} {
		for _, h := range []nats.Header{nil, {
			"ce-type": {"%FF"}, "CE-ID": {"x"}, "dlq-error": {"%C0%AF \x01"}, "dlq-count": {"many"}, "dlq-attempts": {"{"},
			"dlq-first-failure": {"yesterday"}, "dlq-sequence": {"-1"}, "dlq-failures": {"-3"},
		}} {
			l := &letter{entry: parseEntry(testNames, subject, 1, testTime, h, 3), header: h, data: []byte("\xff")}
			if l.entry.Count != 1 || l.entry.Failures != 0 || l.entry.Fingerprint == "" || !strings.Contains(l.entry.ID, ".") {
				t.Errorf("%s: %+v", subject, l.entry)
			}
			if _, err := json.Marshal(l.record()); err != nil {
				t.Errorf("%s: %v", subject, err)
			}
		}
	}
}

func TestRecord_json_is_exact(t *testing.T) {
	t.Parallel()
	text := `{"amount":9007199254740993,"z":1.0,"a":1,"b":"<&>"}`
	for _, data := range []string{text, "\xff\x00", ""} {
		l := stored(mustLetter(t, failedMessage(data), testStory(attempt(1, "c", "e")), maxPayload))
		doc, err := json.Marshal(l.record())
		if err != nil {
			t.Fatal(err)
		}
		var back struct {
			ID      string      `json:"id"`
			Text    *string     `json:"data"`
			Data    []byte      `json:"data_base64"`
			Headers nats.Header `json:"headers"`
		}
		if err := json.Unmarshal(doc, &back); err != nil {
			t.Fatal(err)
		}
		if string(back.Data) != data || back.ID != l.entry.ID {
			t.Errorf("%q came back as %q, id %q", data, back.Data, back.ID)
		}
		if data == text && (back.Text == nil || *back.Text != text) || data == "\xff\x00" && back.Text != nil {
			t.Errorf("%q: text %v", data, back.Text)
		}
		if got := back.Headers["X-Multi"]; len(got) != 2 {
			t.Errorf("headers %v", back.Headers)
		}
	}
}

func TestParseID(t *testing.T) {
	t.Parallel()
	if c, k, err := parseID("payment.abc"); err != nil || c != "payment" || k != "abc" {
		t.Error(c, k, err)
	}
	if c, k, err := parseID("abc"); err != nil || c != "" || k != "abc" {
		t.Error(c, k, err)
	}
	for _, id := range []string{"", ".", "a.", ".a", "*", "a.>", "a.*", "a b", "a.b\r\n", "a.b..c"} {
		if _, _, err := parseID(id); !errors.Is(err, ErrSelection) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestFilter_every_field_must_match(t *testing.T) {
	t.Parallel()
	names := event.Names{TypePrefix: "com.acme."}
	e := Entry{
		Consumer: "payment", Reason: "exhausted", Class: "timeout", Type: "com.acme.order.placed.v1",
		Key: "ord-1", Fingerprint: "f", Error: "Gateway down", Stored: testTime,
	}
	full := Filter{
		Consumer: "payment", Reason: "exhausted", Class: "timeout", Type: "order.placed.v1", Key: "ord-1",
		Fingerprint: "f", Text: "gateway", After: testTime, Before: testTime.Add(1),
	}
	if !(Filter{}).Matches(names, e) || !full.Matches(names, e) {
		t.Error("should match")
	}
	for name, spoil := range map[string]func(*Filter){
		"consumer": func(f *Filter) { f.Consumer = "x" }, "reason": func(f *Filter) { f.Reason = "x" },
		"class": func(f *Filter) { f.Class = "x" }, "type": func(f *Filter) { f.Type = "x" },
		"key": func(f *Filter) { f.Key = "x" }, "fingerprint": func(f *Filter) { f.Fingerprint = "x" },
		"text": func(f *Filter) { f.Text = "x" }, "after": func(f *Filter) { f.After = testTime.Add(time.Second) },
		"before": func(f *Filter) { f.Before = testTime },
	} {
		f := full
		spoil(&f)
		if f.Matches(names, e) {
			t.Errorf("%s is not looked at", name)
		}
	}
	for _, f := range []Filter{{Consumer: "a.b"}, {Consumer: "*"}, {Reason: ">"}} {
		if err := f.validate(); !errors.Is(err, ErrSelection) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
