package dlq

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/http/httpguts"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

const maxPayload = 1 << 20

var (
	testNames  = event.Names{Prefix: "shop"}
	testTime   = time.Date(2026, 3, 1, 10, 0, 0, 123456789, time.UTC)
	testOrigin = Origin{Stream: "shop-EVENTS", Sequence: 42, Time: testTime}
)

// failedMessage is a binary-mode event as a consumer got it.
func failedMessage(data string) *nats.Msg {
	return &nats.Msg{
		Subject: "shop.events.order.placed.v1.ord-1",
		Header: nats.Header{
			"ce-specversion":   {"1.0"},
			"ce-id":            {"id-1"},
			"ce-source":        {"/order"},
			"ce-type":          {"order.placed.v1"},
			"ce-partitionkey":  {"ord-1"},
			"ce-correlationid": {"ord-1"},
			"X-Multi":          {"a", "b"},
			"x-multi":          {"lower"},
			"Nats-Msg-Id":      {"abc"},
		},
		Data: []byte(data),
	}
}

func testStory(attempts ...event.Attempt) Story {
	return Story{
		Consumer: "payment", Reason: event.ReasonExhausted, Key: event.NewEventKey("/order", "id-1"),
		Attempts: attempts, Failures: len(attempts), Crashes: 1,
		Host: "host é", Version: "v1.2", At: testTime.Add(time.Minute),
	}
}

func attempt(n int, class, text string) event.Attempt {
	return event.Attempt{Number: n, At: testTime.Add(time.Duration(n) * time.Second), Class: class, Error: text, Host: "h"}
}

func mustLetter(t *testing.T, m *nats.Msg, s Story, limit int64) *nats.Msg {
	t.Helper()
	l, err := Letter(testNames, m, testOrigin, s, limit)
	if err != nil {
		t.Fatalf("Letter: %v", err)
	}
	return l
}

// stored is a letter as it comes back from the server.
func stored(m *nats.Msg) *letter {
	return &letter{
		entry:  parseEntry(testNames, m.Subject, 7, testTime, m.Header, len(m.Data)),
		header: m.Header,
		data:   m.Data,
	}
}

// onWire is what the headers and data count towards max_payload.
func onWire(m *nats.Msg) int { return m.Size() - len(m.Subject) - len(m.Reply) }

func TestLetter_tells_the_story(t *testing.T) {
	t.Parallel()
	m := failedMessage("{}")
	l := stored(mustLetter(t, m, testStory(attempt(1, "timeout", "first"), attempt(2, "refused", "last é")), maxPayload))
	r := l.record()
	want := Entry{
		ID: "payment." + string(event.NewEventKey("/order", "id-1")), Sequence: 7, Stored: testTime,
		Consumer: "payment", Reason: "exhausted", EventKey: event.NewEventKey("/order", "id-1"),
		EventID: "id-1", Source: "/order", Type: "order.placed.v1", Key: "ord-1", CorrelationID: "ord-1",
		Class: "refused", Error: "last é", Fingerprint: fingerprint("refused", "last é", "order.placed.v1"),
		Count: 1, Failures: 2, Crashes: 1, LastFailure: testTime.Add(2 * time.Second),
		FirstFailure: testTime.Add(time.Second), FirstClass: "timeout", FirstError: "first",
		Host: "host é", Version: "v1.2", Size: 2,
		Origin: Origin{Subject: m.Subject, Stream: "shop-EVENTS", Sequence: 42, Time: testTime},
	}
	if r.Entry != want {
		t.Errorf("entry:\n got %+v\nwant %+v", r.Entry, want)
	}
	if len(r.Attempts) != 2 || r.Attempts[1] != attempt(2, "refused", "last é") {
		t.Errorf("attempts: %+v", r.Attempts)
	}
}

func TestLetter_of_a_structured_event_tells_its_attributes(t *testing.T) {
	t.Parallel()
	m := &nats.Msg{
		Subject: "foreign.orders", Header: nats.Header{"content-type": {"application/cloudevents+json"}, "ce-id": {"WRONG"}},
		Data: []byte(`{"specversion":"1.0","id":"id-1","source":"/order","type":"order.placed.v1","partitionkey":"ord 1"}`),
	}
	e := stored(mustLetter(t, m, testStory(attempt(1, "c", "e")), maxPayload)).entry
	if e.EventID != "id-1" || e.Type != "order.placed.v1" || e.Source != "/order" || e.Key != "ord 1" {
		t.Errorf("entry: %+v", e)
	}
}

// Data and the event's own headers pass through letter and replay unchanged.
func TestData_passes_letter_and_replay_unchanged(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		`{"amount":9007199254740993,"z":1.0,"a":1}`, "", "\xef\xbb\xbf\xff\x00", strings.Repeat("x", maxPayload/2),
	} {
		m := failedMessage(data)
		l := mustLetter(t, m, testStory(attempt(1, "c", "e")), maxPayload)
		again, err := redriveMessage(testNames, stored(l), 1, 0, maxPayload)
		if err != nil {
			t.Fatal(err)
		}
		for hop, got := range map[string]*nats.Msg{"letter": l, "replay": again} {
			if sha256.Sum256(got.Data) != sha256.Sum256([]byte(data)) {
				t.Errorf("%s: data changed", hop)
			}
			if own := originals(got.Header); fmt.Sprint(own) != fmt.Sprint(originals(m.Header)) {
				t.Errorf("%s: headers changed:\n got %v\nwant %v", hop, own, originals(m.Header))
			}
		}
		if len(m.Header) != 9 {
			t.Error("the failed message was changed")
		}
	}
}

func TestError_text_cannot_split_headers(t *testing.T) {
	t.Parallel()
	evil := "l1\r\nNats-Msg-Id: x\r\n\r\nboom é\x1b[2J \xff \U0001F600 \x7f"
	s := testStory(attempt(1, evil, evil))
	s.Host, s.Version = evil, evil
	m := mustLetter(t, failedMessage("body"), s, maxPayload)
	for name, values := range m.Header {
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%s: not printable ASCII: %q", name, v)
			}
		}
	}
	l := stored(m)
	readable := strings.ToValidUTF8(evil, "\uFFFD")
	if l.entry.Error != readable || l.entry.Host != readable || l.record().Attempts[0].Error != readable {
		t.Errorf("text is not readable: %q, %q, %+v", l.entry.Error, l.entry.Host, l.record().Attempts)
	}
	if first(m.Header, nats.MsgIdHdr) != "" {
		t.Error("a control header slipped in")
	}
}

func TestControl_headers_are_kept_as_data_only(t *testing.T) {
	t.Parallel()
	m := failedMessage("x")
	m.Header["Nats-Expected-Last-Subject-Sequence"] = []string{"7"}
	m.Header["NATS-TTL"] = []string{"5s"}
	m.Header["nats-rollup"] = []string{"all"}
	m.Header["dlq-replay"] = []string{"99"} // forged: it did not come by a redrive subject
	m.Header["bad/name é"] = []string{"v"}  // the client would refuse to send it
	l := mustLetter(t, m, testStory(attempt(1, "c", "e")), maxPayload)
	redriven, err := redriveMessage(testNames, stored(l), 1, 0, maxPayload)
	if err != nil {
		t.Fatal(err)
	}
	second := mustLetter(t, redriven, testStory(attempt(1, "c", "e")), maxPayload)
	for hop, got := range map[string]*nats.Msg{"letter": l, "replay": redriven, "second letter": second} {
		for name := range got.Header {
			if hasPrefixFold(name, "nats-") && (hop != "replay" || name != nats.MsgIdHdr) {
				t.Errorf("%s: control header %s", hop, name)
			}
			if !httpguts.ValidHeaderFieldName(name) {
				t.Errorf("%s: header %q cannot be sent", hop, name)
			}
		}
		for name, value := range map[string]string{
			"dlq-original-Nats-Expected-Last-Subject-Sequence": "7",
			"dlq-original-NATS-TTL":                            "5s",
			"dlq-original-nats-rollup":                         "all",
			"dlq-original-Nats-Msg-Id":                         "abc",
			"dlq-original-dlq-replay":                          "99",
			"dlq-original-bad%2Fname%20%C3%A9":                 "v",
		} {
			if first(got.Header, name) != value {
				t.Errorf("%s: %s is %q, want %q", hop, name, first(got.Header, name), value)
			}
		}
	}
	if e := stored(l).entry; e.Count != 1 {
		t.Errorf("count %d from a forged header", e.Count)
	}
}

// The letters of one event for one consumer have one subject, whichever
// delivery failed: parking again replaces.
func TestA_letter_has_a_stable_subject(t *testing.T) {
	t.Parallel()
	s := testStory(attempt(1, "decode", "no id"))
	s.Reason, s.Key = event.ReasonDecode, event.EventKeyAt("shop-EVENTS", 42, testTime)
	a := mustLetter(t, failedMessage("x"), s, maxPayload)
	s.At = s.At.Add(time.Hour)
	b := mustLetter(t, failedMessage("x"), s, maxPayload)
	if want := "shop.dlq.payment.decode." + string(s.Key); a.Subject != want || b.Subject != want {
		t.Errorf("subjects %s, %s, want %s", a.Subject, b.Subject, want)
	}
}

func TestLetter_keeps_history_over_replays(t *testing.T) {
	t.Parallel()
	m := failedMessage("x")
	for round := 1; round <= 60; round++ {
		l := mustLetter(t, m, testStory(attempt(1, "class", fmt.Sprintf("round %d", round))), maxPayload)
		e := stored(l).entry
		if e.Count != round || e.FirstError != "round 1" || e.Error != fmt.Sprintf("round %d", round) {
			t.Fatalf("round %d: %+v", round, e)
		}
		if e.Origin.Subject != "shop.events.order.placed.v1.ord-1" || e.Origin.Sequence != 42 || !e.Origin.Time.Equal(testTime) {
			t.Fatalf("round %d: origin %+v", round, e.Origin)
		}
		history := stored(l).record().Attempts
		if len(history) != min(round, maxAttempts) || history[0].Error != "round 1" || history[len(history)-1].Error != e.Error {
			t.Fatalf("round %d: history of %d: %+v", round, len(history), history)
		}
		var err error
		if m, err = redriveMessage(testNames, stored(l), e.Count, 0, maxPayload); err != nil {
			t.Fatal(err)
		}
		r, ok := RedriveOf(m.Header)
		if !ok || r.Replay != round || r.Key != e.EventKey {
			t.Fatalf("round %d: redrive %+v %v", round, r, ok)
		}
		if m.Subject != "shop.redrive.payment.order.placed.v1.ord-1" {
			t.Fatalf("round %d: subject %s", round, m.Subject)
		}
	}
}

// A message that the server took can be parked and replayed, however little
// room it leaves.
func TestLetter_fits_beside_a_message_of_the_maximum_size(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("error é ", 500)
	attempts := []event.Attempt{attempt(1, "c", long), attempt(2, "c", long), attempt(3, "c", long)}
	bare := failedMessage("")
	bare.Header[nats.MsgIdHdr] = []string{string(event.NewEventKey("/order", "id-1"))}
	overhead := onWire(bare)
	for _, room := range []int{0, 1, 10, 47, 100, 200, 500, 1000, 5000, 20000, 100000} {
		m := failedMessage(strings.Repeat("x", maxPayload-overhead-room))
		m.Header = maps.Clone(bare.Header)
		l := mustLetter(t, m, testStory(attempts...), maxPayload)
		if size := onWire(l); size > maxPayload {
			t.Errorf("room %d: the letter has %d bytes", room, size)
		}
		if !bytes.Equal(l.Data, m.Data) {
			t.Errorf("room %d: data changed", room)
		}
		e := stored(l).entry
		if !e.Cut && room < 20000 {
			t.Errorf("room %d: the letter does not say that it was cut", room)
		}
		if room >= 100 && (e.Class != "c" || e.Origin.Subject != m.Subject) {
			t.Errorf("room %d: what matters most is missing: %+v", room, e)
		}
		again, err := redriveMessage(testNames, stored(l), e.Count, 0, maxPayload)
		if err != nil {
			t.Fatalf("room %d: %v", room, err)
		}
		if size := onWire(again); size > maxPayload {
			t.Errorf("room %d: the replay has %d bytes", room, size)
		}
		if r, ok := RedriveOf(again.Header); !ok || r.Replay != 1 || again.Subject != "shop.redrive.payment.order.placed.v1.ord-1" {
			t.Errorf("room %d: redrive %+v %v to %s", room, r, ok, again.Subject)
		}
	}
}

func TestLetter_headers_stay_below_what_jetstream_stores(t *testing.T) {
	t.Parallel()
	m := failedMessage("x")
	m.Header["x-large"] = []string{strings.Repeat("v", 50_000)}
	var attempts []event.Attempt
	for i := range 200 {
		attempts = append(attempts, attempt(i, "c", strings.Repeat("é", 1024)))
	}
	l := mustLetter(t, m, testStory(attempts...), 0)
	if size := onWire(l) - len(l.Data); size > bus.MaxHeader {
		t.Errorf("%d bytes of headers", size)
	}
	if history := stored(l).record().Attempts; len(history) < 2 || history[len(history)-1].Number != 199 {
		t.Errorf("history of %d", len(history))
	}
}

func TestLetter_of_what_no_server_takes_is_refused(t *testing.T) {
	t.Parallel()
	_, err := Letter(testNames, failedMessage(strings.Repeat("x", 1000)), testOrigin, testStory(), 1000)
	if !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("error %v, want ErrTooLarge", err)
	}
}

func TestRedriveOf_an_original_delivery_is_none(t *testing.T) {
	t.Parallel()
	for _, h := range []nats.Header{
		nil, {}, {"dlq-replay": {"-1"}}, {"dlq-replay": {"x"}}, {"DLQ-Replay": {"1"}}, {"dlq-event-key": {"k"}},
	} {
		if r, ok := RedriveOf(h); ok {
			t.Errorf("%v: %+v", h, r)
		}
	}
	if r, ok := RedriveOf(nats.Header{"dlq-replay": {"2"}, "dlq-event-key": {"a.>"}}); !ok || r.Key != "" {
		t.Errorf("illegal key taken: %+v %v", r, ok)
	}
}
