package dlq

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

var testDue = time.Date(2026, time.January, 2, 15, 5, 6, 7, time.FixedZone("CET", 3600))

// A message that the server took can be deferred however little room it
// leaves, or it is said that it cannot.
func TestDeferral_fits_beside_a_message_of_the_maximum_size(t *testing.T) {
	t.Parallel()
	key := event.NewEventKey("/order", "id-1")
	bare := failedMessage("")
	overhead := onWire(bare)
	deferred := 0
	for _, room := range []int{0, 1, 100, 200, 300, 500, 1000, 100000} {
		m := failedMessage(strings.Repeat("x", maxPayload-overhead-room))
		l, err := Deferral(testNames, m, testOrigin, Story{Consumer: "payment", Key: key}, testDue, maxPayload)
		if err != nil {
			if !errors.Is(err, bus.ErrTooLarge) || room >= 300 {
				t.Errorf("room %d: %v", room, err)
			}
			continue
		}
		deferred++
		if size := onWire(l); size > maxPayload {
			t.Errorf("room %d: %d bytes", room, size)
		}
		if !bytes.Equal(l.Data, m.Data) || l.Subject != "shop.timer.payment.retry."+string(key) {
			t.Errorf("room %d: data changed, or kept on %s", room, l.Subject)
		}
		if at, to := l.Header.Get(jetstream.ScheduleHeader), l.Header.Get(jetstream.ScheduleTargetHeader); at != "@at 2026-01-02T14:05:06.000000007Z" ||
			to != "shop.due.redrive.payment.order.placed.v1.ord-1" {
			t.Errorf("room %d: scheduled %q to %q", room, at, to)
		}
		if r, ok := RedriveOf(l.Header); !ok || r.Replay != 0 || r.Key != "" && r.Key != key {
			t.Errorf("room %d: redrive %+v %v", room, r, ok)
		}
	}
	if deferred < 4 {
		t.Errorf("%d messages deferred", deferred)
	}
}

// The letter of a deferred message is that of the message itself.
func TestLetter_of_a_deferred_message(t *testing.T) {
	t.Parallel()
	m := failedMessage("data")
	m.Header[nats.MsgIdHdr] = []string{"msg-1"}
	first, second := attempt(1, "net.OpError", "down"), attempt(2, "error", "wrong")
	want := mustLetter(t, m, testStory(first, second), maxPayload)

	s := testStory(first, second)
	for range 2 { // a deferred message may be deferred again
		l, err := Deferral(testNames, m, testOrigin, Story{Consumer: s.Consumer, Key: s.Key}, testDue, maxPayload)
		if err != nil {
			t.Fatal(err)
		}
		m = &nats.Msg{Subject: testNames.RedriveSubject(s.Consumer, m.Subject), Header: l.Header, Data: l.Data}
		m.Header.Set("Nats-Scheduler", l.Subject) // as the server publishes it
		m.Header.Del(jetstream.ScheduleHeader)
		m.Header.Del(jetstream.ScheduleTargetHeader)
	}
	elsewhere := Origin{Stream: "EVENTS", Sequence: 4711, Time: testTime.Add(time.Hour)}
	got, err := Letter(testNames, m, elsewhere, s, maxPayload)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Data, want.Data) || got.Subject != want.Subject {
		t.Errorf("letter on %s, want %s", got.Subject, want.Subject)
	}
	for name, values := range want.Header {
		if !equalValues(got.Header[name], values) {
			t.Errorf("%s is %q, want %q", name, got.Header[name], values)
		}
	}
	for name := range got.Header {
		if _, ok := want.Header[name]; !ok {
			t.Errorf("%s is told: %q", name, got.Header[name])
		}
	}
}

func equalValues(a, b []string) bool { return strings.Join(a, "\x00") == strings.Join(b, "\x00") }

func TestRedriveOf_a_deferred_retry(t *testing.T) {
	t.Parallel()
	h := nats.Header{"dlq-replay": {"0"}, "dlq-event-key": {"k"}, "dlq-stored": {"2026-01-02T15:04:05Z"}}
	want := Redrive{Key: "k", Stored: time.Date(2026, time.January, 2, 15, 4, 5, 0, time.UTC)}
	if r, ok := RedriveOf(h); !ok || r != want {
		t.Errorf("%+v %v, want %+v", r, ok, want)
	}
}
