package dlq_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// A consumer that was renamed or removed has letters that nobody would take.
func TestReplay_to_nobody_keeps_the_letter(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 3 {
		f.park("payment", n)
	}
	f.park("audit", 3)
	f.end("payment")
	for _, o := range []dlq.ReplayOptions{{DryRun: true}, {}} {
		sum, results := f.replay(dlq.Selection{Filter: dlq.Filter{Consumer: "payment"}}, o)
		f.expect(sum, map[dlq.Status]int{dlq.NoConsumer: 3})
		if !errors.Is(results[0].Err, dlq.ErrNoConsumer) || !strings.Contains(results[0].Message, "no consumer payment exists") {
			t.Errorf("%+v: %+v", o, results[0])
		}
	}
	if left, sent := f.list(dlq.Filter{}, dlq.PageOptions{}).Total, len(f.stored(f.names.RedriveFilter("payment"))); left != 4 || sent != 0 {
		t.Errorf("%d letters left and %d replays stored, want 4 and 0", left, sent)
	}

	// A durable of that name that does not take redrives is no better.
	_, err := f.bus.JetStream().CreateConsumer(t.Context(), f.names.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", FilterSubjects: []string{f.names.TypeFilter("order.placed.v1")},
	})
	f.check(err)
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.NoConsumer: 3, dlq.Replayed: 1})

	sum, _ = f.replay(dlq.Selection{IDs: []string{id(0)}}, dlq.ReplayOptions{Force: true})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	f.end("payment")
	f.start("payment")
	sum, _ = f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 2, dlq.InProgress: 2})
}

// deferred is the retry that waits until due for the n-th event's time.
func (f *fixture) deferred(c event.Consumer, n int, due time.Time) *nats.Msg {
	f.t.Helper()
	m, err := dlq.Deferral(f.names, f.event(n), dlq.Origin{Stream: f.names.EventsStream(), Sequence: uint64(n), Time: time.Now()},
		dlq.Story{Consumer: c, Key: key(n)}, due, 0)
	f.check(err)
	return m
}

// Long retries of a consumer that exists no more are in no list of letters; the
// statistics tell that they wait. Letters that are being replayed are counted as such.
func TestStats_tell_what_waits_for_a_consumer_that_does_not_exist(t *testing.T) {
	t.Parallel()
	f := setup(t)
	waiting := dlq.Mark{State: dlq.StateWaiting, At: time.Now()}
	for n := range 3 {
		m := f.deferred("payment", n, time.Now().Add(time.Hour))
		if n == 2 { // its time has come
			m = &nats.Msg{Subject: f.names.RedriveSubject("payment", f.event(n).Subject), Header: m.Header, Data: m.Data}
			m.Header.Del(jetstream.ScheduleHeader)
			m.Header.Del(jetstream.ScheduleTargetHeader)
		}
		f.check(f.send(m))
		f.ledger.set("payment", key(n), waiting)
	}
	for n := 3; n < 6; n++ {
		f.park("payment", n)
	}
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.ledger.set("payment", key(3), dlq.Mark{State: dlq.StateDone, Replay: 1}) // handled
	f.ledger.forget("payment", key(4))                                         // as after the retention
	// The mark of the fifth says that it was parked before its replay.

	s, err := f.queue.Stats(t.Context())
	f.check(err)
	if len(s.Replays) != 1 || s.Replays[0].Waiting != 2 || s.Replays[0].Handled != 1 || *s.Replays[0].Workers != 2 {
		t.Errorf("replays: %+v", s.Replays)
	}
	stranded := func() string {
		s, err := f.queue.Stats(t.Context())
		f.check(err)
		return fmt.Sprintf("%+v", s.Stranded)
	}
	if got := stranded(); got != "[]" {
		t.Errorf("while payment exists: %s", got)
	}
	f.end("payment")
	if got := stranded(); got != "[{Consumer:payment Deferred:2 Arrived:1 Unknown:0}]" {
		t.Errorf("without payment: %s", got)
	}
	f.check(f.send(&nats.Msg{Subject: f.names.Root("ledger.payment.3.page")}))
	if got := stranded(); got != "[]" {
		t.Errorf("while payment has pages: %s", got)
	}
	events, err := f.bus.JetStream().Stream(t.Context(), f.names.EventsStream())
	f.check(err)
	f.check(events.Purge(t.Context(), jetstream.WithPurgeSubject(f.names.Root("ledger.payment.>")))) // as a person retires it
	if got := stranded(); got != "[{Consumer:payment Deferred:2 Arrived:1 Unknown:0}]" {
		t.Errorf("when its pages are purged: %s", got)
	}
	c, err := f.queue.Get(t.Context(), id(0))
	f.check(err)
	if !strings.HasSuffix(c.Verdict, "; no consumer payment exists: start it, and the event goes on") {
		t.Errorf("verdict: %s", c.Verdict)
	}
	f.start("payment")
	if got := stranded(); got != "[]" {
		t.Errorf("when payment is back: %s", got)
	}
	f.check(f.bus.JetStream().DeleteStream(t.Context(), f.names.EventsStream()))
	if got := stranded(); got != "[{Consumer:payment Deferred:2 Arrived:0 Unknown:0}]" {
		t.Errorf("without an event stream: %s", got)
	}
	if _, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, nil); err != nil {
		t.Errorf("nothing to replay: %v", err)
	}
}
