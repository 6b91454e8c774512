package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

const exactData = `{"amount":9007199254740993,"z":1.0,"a":1}`

func TestPublish_prints_the_receipt(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	args := []string{"publish", "order.placed.v1", "ord-1", "--id", "e1", "--source", "/shop", "--data", exactData, "--ext", "region=eu", "--json"}
	var first, second published
	for _, p := range []*published{&first, &second} {
		got := s.run(t, "", args...)
		if got.code != exitDone {
			t.Fatalf("exit %d: %s", got.code, got.err)
		}
		must(t, json.Unmarshal([]byte(got.out), p))
	}
	if first.Duplicate || !second.Duplicate || first.Sequence != 1 || first.EventKey != event.NewEventKey("/shop", "e1") {
		t.Errorf("first %+v, second %+v", first, second)
	}
	other := s.run(t, "", "publish", "order.placed.v1", "ord-1", "--id", "e1", "--source", "/shop", "--data", "{}")
	if other.code != exitFailed || !strings.Contains(other.err, "other data: there 41 bytes") {
		t.Errorf("other data under the same id: %+v", other)
	}
	if got := s.run(t, "", "publish", "order.placed.v1", "ord-1"); !strings.HasPrefix(got.out, "stored: ") {
		t.Errorf("for people: %+v", got)
	}
	if got := s.run(t, "", "publish", "Not a type", "ord-1"); got.code != exitUsage {
		t.Errorf("illegal type: %+v", got)
	}
}

func TestPublish_content_id_makes_a_repeat_a_duplicate(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	publish := func(key, data string) (p published) {
		got := s.run(t, data, "publish", "order.placed.v1", key, "--content-id", "--data", "-", "--json")
		if got.code != exitDone {
			t.Fatalf("exit %d: %s", got.code, got.err)
		}
		must(t, json.Unmarshal([]byte(got.out), &p))
		return p
	}
	if publish("k1", `{"a":1,"b":2}`).Duplicate || !publish("k1", `{"b":2, "a":1}`).Duplicate {
		t.Error("the same content is not one event")
	}
	if publish("k2", `{"a":1,"b":2}`).Duplicate {
		t.Error("the same data about something else is taken for a duplicate")
	}
}

func TestTail_prints_CloudEvents_with_exact_data(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	pretty := "{\n  \"amount\": 9007199254740993\n}"
	sent := []string{
		exactData, ` {"a" : 1.0,"b":"\u20ac\/<&>"} `, pretty, "[1,\t2]\r\n", "null", "\"\u202e\u009b\u2028\"", `"\u202e\u200d"`, "not \xff JSON", "",
	}
	for _, data := range sent {
		e := s.seal(t, event.Draft{Type: "order.placed.v1", Key: "k", ContentType: event.ContentTypeJSON, Data: []byte(data)})
		_, err := s.Publish(t.Context(), e)
		must(t, err)
	}
	s.send(t, &nats.Msg{Subject: s.Names().Root("events.order.placed.v1.x"), Data: []byte("\x1b[2J")})
	got := s.run(t, "", "tail", "--no-follow", "--json")
	lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	if got.code != exitDone || len(lines) != len(sent) {
		t.Fatalf("%+v", got)
	}
	for i, line := range lines {
		var e struct {
			Data   json.RawMessage `json:"data"`
			Base64 []byte          `json:"data_base64"`
		}
		must(t, json.Unmarshal([]byte(line), &e))
		if have := string(e.Data) + string(e.Base64); have != sent[i] {
			t.Errorf("data %q, want %q (%s)", have, sent[i], line)
		}
	}
	if !strings.Contains(lines[0], `"data":`+exactData) || !strings.Contains(lines[2], `"data_base64":"`+base64.StdEncoding.EncodeToString([]byte(pretty))) {
		t.Errorf("lines %q", lines)
	}
	assertHarmless(t, got)
	if !strings.Contains(got.err, "message 10") {
		t.Errorf("the undecodable message is not mentioned: %q", got.err)
	}
}

// TestTail_by_key_on_a_stream_that_folds: subjects do not tell the key there.
func TestTail_by_key_on_a_stream_that_folds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	publish := func(key event.Key, id string) {
		_, err := s.Publish(t.Context(), s.seal(t, event.Draft{Type: "order.placed.v1", Key: key, ID: id}))
		must(t, err)
	}
	publish("ord-1", "a")
	stream, err := s.JetStream().Stream(t.Context(), s.Names().EventsStream())
	must(t, err)
	cfg := stream.CachedInfo().Config
	cfg.SubjectTransform = &jetstream.SubjectTransformConfig{
		Source:      s.Names().Root("events.*.*.*.*"),
		Destination: s.Names().Root("events.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(8,4)}}.{{partition(1,4)}}"),
	}
	_, err = s.JetStream().UpdateStream(t.Context(), cfg)
	must(t, err)
	publish("ord-1", "b")
	publish("ord-2", "c")
	publish("0", "d") // the number of their partition
	for key, want := range map[string]string{"ord-1": "ab", "ord-2": "c", "0": "d", "none": ""} {
		for _, args := range [][]string{nil, {"--type", "order.placed.v1"}} {
			if ids := s.tail(t, append(args, "--key", key)...); ids != want {
				t.Errorf("%v of key %s: %q, want %q", args, key, ids, want)
			}
		}
	}
}

// tail returns the ids of the events that tail prints.
func (s *system) tail(t *testing.T, args ...string) (ids string) {
	t.Helper()
	got := s.run(t, "", append([]string{"tail", "--no-follow", "--json"}, args...)...)
	if got.code != exitDone {
		t.Fatalf("exit %d: %s", got.code, got.err)
	}
	for line := range strings.Lines(got.out) {
		var e struct{ ID string }
		must(t, json.Unmarshal([]byte(line), &e))
		ids += e.ID
	}
	return ids
}

func TestTail_filters(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, d := range []event.Draft{
		{Type: "order.placed.v1", Key: "ord/1", ID: "a"},
		{Type: "order.placed.v1", Key: "ord/2", ID: "b"},
		{Type: "payment.captured.v1", Key: "ord/1", ID: "c", Correlation: "saga"},
	} {
		_, err := s.Publish(t.Context(), s.seal(t, d))
		must(t, err)
	}
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"all", nil, "abc"},
		{"type", []string{"--type", "order.placed.v1"}, "ab"},
		{"types", []string{"--type", "order.placed.v1,payment.captured.v1"}, "abc"},
		{"key", []string{"--key", "ord/1"}, "ac"},
		{"type and key", []string{"--type", "order.placed.v1", "--key", "ord/2"}, "b"},
		{"correlation", []string{"--correlation", "saga"}, "c"},
		{"limit", []string{"--limit", "2"}, "ab"},
		{"since", []string{"--since", "1h"}, "abc"},
		{"nothing", []string{"--key", "none"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ids := s.tail(t, tt.args...); ids != tt.want {
				t.Errorf("ids %q, want %q", ids, tt.want)
			}
		})
	}
}

func TestTail_shows_bytes_of_events_escaped(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.send(t, &nats.Msg{
		Subject: s.Names().Root("events.order.placed.v1.k"),
		Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {"%E2%80%AEx"}, "ce-source": {"/x"},
			"ce-type": {"order.placed.v1"}, "ce-datacontenttype": {"text/plain"}, "ce-partitionkey": {"k"},
		},
		Data: []byte("\x1b[2J\x1b]0;x\x07\rgone\u202e\u009b"),
	})
	got := s.run(t, "", "tail", "--no-follow", "--data")
	if got.code != exitDone || !strings.Contains(got.out, `\u001b[2J\u001b]0;x\u0007\rgone\u202e\u009b`) {
		t.Errorf("%+v", got)
	}
	assertHarmless(t, got)
}

// assertHarmless fails when output holds anything that a terminal obeys.
func assertHarmless(t *testing.T, got result) {
	t.Helper()
	for _, text := range []string{got.out, got.err} {
		if i := strings.IndexFunc(text, func(r rune) bool {
			return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0xfffd
		}); i >= 0 {
			t.Errorf("control character at %d of %q", i, text)
		}
	}
}

func TestTopology(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	plan := func(args ...string) (steps map[string]string, code int) {
		got := s.run(t, "", append(args, "--json")...)
		var doc struct {
			Steps []struct{ Stream, Action string }
		}
		must(t, json.Unmarshal([]byte(got.out), &doc))
		steps = map[string]string{}
		for _, step := range doc.Steps {
			steps[step.Stream] = step.Action
		}
		return steps, got.code
	}
	stream := "KV_" + s.Names().Bucket("payments")
	if steps, code := plan("topology", "plan"); code != exitDone || steps[stream] != "create" || steps[s.Names().EventsStream()] != "keep" {
		t.Errorf("plan: exit %d, %v", code, steps)
	}
	if _, code := plan("topology", "apply"); code != exitDone {
		t.Errorf("apply: exit %d", code)
	}
	if steps, _ := plan("topology", "plan"); steps[stream] != "keep" {
		t.Errorf("plan afterwards: %v", steps)
	}
	must(t, s.JetStream().DeleteStream(t.Context(), stream))
}

func TestTopology_refusal_is_exit_code_1(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	// Another stream owns a subject of this system's sibling.
	other := event.Names{Prefix: s.Names().Prefix + "x"}
	foreign(t, s, other.Root("events.order.>"))
	got := farandole(t, "", "topology", "apply", "--server", s.flags[1], "--prefix", other.Prefix)
	if got.code != exitFailed || !strings.Contains(got.out, "FOREIGN") || !strings.Contains(got.err, "refused") {
		t.Errorf("%+v", got)
	}
}
