package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// foreign makes a stream that Farandole does not own.
func foreign(t *testing.T, s system, subject string) {
	t.Helper()
	name := "FOREIGN-" + s.Names().Prefix
	_, err := s.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
	must(t, err)
	t.Cleanup(func() {
		if err := s.JetStream().DeleteStream(t.Context(), name); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
}

func failureOf(text string) event.Attempt {
	return event.Attempt{Number: 1, At: time.Now(), Class: "*errors.errorString", Error: text}
}

func placedEvent(t *testing.T, s system, key event.Key, data string) event.Event {
	t.Helper()
	return s.seal(t, event.Draft{Type: "order.placed.v1", Key: key, ContentType: event.ContentTypeJSON, Data: []byte(data)})
}

func TestData_is_shown_and_written_exactly(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	id := s.park(t, placedEvent(t, s, "ord-1", exactData), failureOf("boom"))
	want := sha256.Sum256([]byte(exactData))

	if got := s.run(t, "", "dlq", "show", id); got.code != exitDone || !strings.Contains(got.out, "\n  "+exactData+"\n") {
		t.Errorf("show: %+v", got)
	}
	var doc struct {
		Letter struct {
			Data   string `json:"data"`
			Base64 []byte `json:"data_base64"`
		}
	}
	must(t, json.Unmarshal([]byte(s.run(t, "", "dlq", "show", id, "--json").out), &doc))
	if sha256.Sum256([]byte(doc.Letter.Data)) != want || sha256.Sum256(doc.Letter.Base64) != want {
		t.Errorf("JSON: %+v", doc)
	}
	file := filepath.Join(t.TempDir(), "data")
	if got := s.run(t, "", "dlq", "show", id, "-o", file); got.code != exitDone || got.out != "" {
		t.Errorf("to a file: %+v", got)
	}
	data, err := os.ReadFile(file)
	must(t, err)
	if sha256.Sum256(data) != want {
		t.Errorf("file: %q", data)
	}
	if got := s.run(t, "", "dlq", "show", id, "--data", "-"); got.out != exactData {
		t.Errorf("to stdout: %q", got.out)
	}
}

func TestShow_and_list_escape_what_messages_hold(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const evil = "\x1b[2J\x1b]0;x\x07\rok\u202e\u009b"
	e := placedEvent(t, s, "\u202eord", "\x1b[31m")
	id := s.park(t, e, failureOf(evil))
	for _, args := range [][]string{
		{"dlq", "show", id},
		{"dlq", "list"},
		{"dlq", "stats"},
		{"dlq", "replay", id, "--dry-run"},
		{"dlq", "show", id, "--json"},
		{"dlq", "list", "--json"},
		{"dlq", "stats", "--json"},
		{"dlq", "export"},
	} {
		got := s.run(t, "", args...)
		if got.code != exitDone {
			t.Errorf("%v: %+v", args, got)
		}
		assertHarmless(t, got)
	}
	if got := s.run(t, "", "dlq", "show", id); !strings.Contains(got.out, `\u001b[2J\u001b]0;x\u0007\rok\u202e\u009b`) {
		t.Errorf("the error text is not readable: %s", got.out)
	}
}

// parkMany stores n letters without marks, the oldest first.
func (s system) parkMany(t *testing.T, n int) {
	t.Helper()
	messages := make([]*nats.Msg, n)
	for i := range messages {
		e := placedEvent(t, s, event.Key(fmt.Sprint("ord-", i)), `{}`)
		m, err := s.Message(e)
		must(t, err)
		messages[i], err = dlq.Letter(s.Names(), m, dlq.Origin{}, dlq.Story{
			Consumer: "payment", Reason: event.ReasonExhausted, Key: event.EventKeyOf(e),
			Attempts: []event.Attempt{failureOf("boom")}, Failures: 1,
		}, 0)
		must(t, err)
	}
	for part := range slices.Chunk(messages, 500) { // each is to be acknowledged in time, on a busy machine, too
		s.send(t, part...)
	}
}

type listing struct {
	Entries []struct {
		ID       string
		Key      string
		Sequence uint64
	}
	Matching, Total int
	Next            uint64
}

func (s system) list(t *testing.T, args ...string) listing {
	t.Helper()
	got := s.run(t, "", append([]string{"dlq", "list", "--json"}, args...)...)
	if got.code != exitDone {
		t.Fatalf("%+v", got)
	}
	var l listing
	must(t, json.Unmarshal([]byte(got.out), &l))
	return l
}

func TestA_long_list_is_cut_honestly_and_reaches_the_end(t *testing.T) {
	t.Parallel()
	const n = 10_000
	s := newSystem(t)
	s.parkMany(t, n)
	stream, err := s.JetStream().Stream(t.Context(), s.Names().DLQStream())
	must(t, err)
	must(t, stream.DeleteMsg(t.Context(), 5000))

	if l := s.list(t, "--limit", "3", "--cursor", "2"); len(l.Entries) != 1 || l.Next != 0 {
		t.Errorf("last page: %+v", l)
	}
	if l := s.list(t, "--key", "ord-17"); len(l.Entries) != 1 || l.Matching != 1 || l.Total != n-1 {
		t.Errorf("filtered: %+v", l)
	}
	l := s.list(t, "--all")
	if len(l.Entries) != n-1 || l.Next != 0 || l.Matching != n-1 || l.Entries[0].Key != "ord-9999" {
		t.Fatalf("all: %d entries", len(l.Entries))
	}
	for i := 1; i < len(l.Entries); i++ {
		if l.Entries[i].Sequence >= l.Entries[i-1].Sequence {
			t.Fatalf("entry %d is not older than the one before", i)
		}
	}
	got := s.run(t, "", "dlq", "list")
	if lines := strings.Count(got.out, "\n"); lines != 51 || !strings.Contains(got.err, "showing 50 of 9,999") {
		t.Errorf("for people: %d lines, %q", lines, got.err)
	}
	if strings.ContainsRune(got.out, 0x1b) {
		t.Error("colours in a pipe")
	}
	info, err := stream.Info(t.Context())
	must(t, err)
	if info.State.Msgs != n-1 || info.State.Consumers != 0 {
		t.Errorf("listing changed the stream: %+v", info.State)
	}
}

func TestReplay_whose_time_is_over_during_a_question(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	id := s.park(t, placedEvent(t, s, "ord-1", `{}`), failureOf("boom"))
	got := s.run(t, "", "dlq", "replay", id, "--wait", "--timeout", "1ns")
	if got.code != exitWaiting || !strings.Contains(got.err, "--timeout 1ns is over") {
		t.Errorf("%+v", got)
	}
}

func TestReplay_reports_each_letter_and_counts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for i := range 3 {
		s.park(t, placedEvent(t, s, event.Key(fmt.Sprint("ord-", i)), `{}`), failureOf("boom"))
	}
	if got := s.run(t, "", "dlq", "replay"); got.code != exitUsage {
		t.Errorf("nothing selected: %+v", got)
	}
	if got := s.run(t, "", "dlq", "replay", "payment.x", "--key", "ord-1"); got.code != exitUsage {
		t.Errorf("selected in two ways: %+v", got)
	}
	if got := s.run(t, "", "dlq", "replay", "--all", "--dry-run"); got.code != exitDone || !strings.Contains(got.err, "3 selected: 3 would replay") {
		t.Errorf("dry run: %+v", got)
	}
	if got := s.run(t, "", "dlq", "replay", "--all", "--dry-run", "--wait", "7s"); got.code != exitDone || !strings.Contains(got.err, "--wait --timeout 7s waits for what becomes of the events") {
		t.Errorf("a duration after --wait is not said to be for the server: %+v", got)
	}
	got := s.run(t, "", "dlq", "replay", "--all", "--key", "ord-1", "--json")
	if got.code != exitDone || strings.Count(got.out, `"status":"replayed"`) != 1 || strings.Count(got.out, "\n") != 1 {
		t.Errorf("filtered: %+v", got)
	}
	if got := s.run(t, "", "dlq", "replay", "payment."+string(event.NewEventKey("a", "b"))); got.code != exitFailed || !strings.Contains(got.err, "1 not found") {
		t.Errorf("unknown: %+v", got)
	}
	if l := s.list(t); l.Total != 3 {
		t.Errorf("%d letters left, want all until they are handled", l.Total)
	}
}

func TestReplay_says_that_no_consumer_exists(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for i := range 2 {
		s.park(t, placedEvent(t, s, event.Key(fmt.Sprint("ord-", i)), `{}`), failureOf("boom"))
	}
	events := s.Names().EventsStream()
	must(t, s.JetStream().DeleteConsumer(t.Context(), events, "payment"))
	for _, args := range [][]string{{"--dry-run"}, nil} {
		got := s.run(t, "", append([]string{"dlq", "replay", "--all"}, args...)...)
		if got.code != exitFailed || !strings.Contains(got.err, "2 selected: 2 no consumer\n") ||
			!strings.Contains(got.err, "2 not replayed: no consumer payment exists; start it, or --force stores the redrive for whoever comes") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if l := s.list(t); l.Total != 2 {
		t.Fatalf("%d letters left, want 2", l.Total)
	}
	if got := s.run(t, "", "dlq", "replay", "--all", "--force"); got.code != exitDone || !strings.Contains(got.err, "2 replayed") {
		t.Errorf("forced: %+v", got)
	}
	const want = "2 letters are being replayed to payment: 2 waiting; the first sent "
	if got := s.run(t, "", "dlq", "stats"); got.code != exitDone || !strings.Contains(got.out, want) {
		t.Errorf("stats: %+v", got)
	}
	if got := s.run(t, "", "dlq", "stats", "--json"); !strings.Contains(got.out, `"replayed":2,"replays":[{"consumer":"payment","waiting":2,"running":0,"retrying":0,"lost":0,"handled":0,`) {
		t.Errorf("stats: %+v", got)
	}
}

func TestA_replay_is_seen_until_it_is_taken_back(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	id := s.park(t, placedEvent(t, s, "ord-1", `{}`), failureOf("boom"))
	for range 2 { // the second time it is in progress, and no error
		if got := s.run(t, "", "dlq", "replay", id); got.code != exitDone {
			t.Fatalf("replay: %+v", got)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "replayed, 0 workers"},
		{[]string{"show", id}, "verdict        replayed, waiting for payment, none of its workers is there; sent 20"},
		{[]string{"stats"}, "1 letter is being replayed to payment: 1 waiting; the first sent "},
		{[]string{"list", "--json"}, `"replay":{"number":1,"at":"20`},
		{[]string{"show", id, "--json"}, `"state":"waiting","workers":0}`},
		{[]string{"export"}, `"by":"` + operator() + `","state":"waiting","workers":0}`},
	} {
		if got := s.run(t, "", append([]string{"dlq"}, tt.args...)...); got.code != exitDone || !strings.Contains(got.out, tt.want) {
			t.Errorf("%v: %+v, want %q", tt.args, got, tt.want)
		}
	}
	if got := s.run(t, "", "dlq", "replay", "--cancel", "--all", "--force"); got.code != exitUsage {
		t.Errorf("cancel by force: %+v", got)
	}
	if got := s.run(t, "", "dlq", "replay", "--cancel", id); got.code != exitDone || !strings.Contains(got.err, "take back: 1 selected: 1 taken back") {
		t.Errorf("cancel: %+v", got)
	}
	if got := s.run(t, "", "dlq", "list"); !strings.Contains(got.out, "  exhausted  ") {
		t.Errorf("after it: %+v", got)
	}
	if got := s.run(t, "", "dlq", "replay", "--cancel", id); got.code != exitDone || !strings.Contains(got.out, id+"  not replayed") {
		t.Errorf("nothing to take back: %+v", got)
	}
}

func TestDiscard_needs_a_yes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	id := s.park(t, placedEvent(t, s, "ord-1", `{}`), failureOf("boom"))
	if got := s.run(t, "y\n", "dlq", "discard", id); got.code != exitUsage || !strings.Contains(got.err, "--yes") {
		t.Errorf("without a terminal: %+v", got)
	}
	if l := s.list(t); l.Total != 1 {
		t.Fatal("discarded without a yes")
	}
	if got := s.run(t, "", "dlq", "discard", id, "--yes"); got.code != exitDone {
		t.Errorf("%+v", got)
	}
	if l := s.list(t); l.Total != 0 {
		t.Error("not discarded")
	}
	if got := s.run(t, "", "dlq", "list"); got.out != "" || !strings.Contains(got.err, "no dead letters") {
		t.Errorf("empty list: %+v", got)
	}
}

func TestExport_writes_JSON_lines(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for i := range 3 {
		s.park(t, placedEvent(t, s, event.Key(fmt.Sprint("ord-", i)), exactData), failureOf("boom"))
	}
	got := s.run(t, "", "dlq", "export", "--consumer", "payment")
	if got.code != exitDone || strings.Count(got.out, "\n") != 3 {
		t.Fatalf("%+v", got)
	}
	for line := range strings.Lines(got.out) {
		var r struct{ Data string }
		must(t, json.Unmarshal([]byte(line), &r))
		if r.Data != exactData {
			t.Errorf("data %q", r.Data)
		}
	}
}
