package dlq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// ledger is the marks of a ledger in memory.
type ledger struct {
	mu    sync.Mutex
	marks map[string]dlq.Mark
	left  bool // no worker is there
}

func (l *ledger) set(c event.Consumer, k event.EventKey, m dlq.Mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks[fmt.Sprint(c, k)] = m
}

// forget is what the end of the retention does.
func (l *ledger) forget(c event.Consumer, k event.EventKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.marks, fmt.Sprint(c, k))
}

func (l *ledger) Mark(_ context.Context, c event.Consumer, k event.EventKey) (dlq.Mark, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, ok := l.marks[fmt.Sprint(c, k)]
	return m, ok, nil
}

func (l *ledger) Discard(_ context.Context, c event.Consumer, k event.EventKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks[fmt.Sprint(c, k)] = dlq.Mark{State: dlq.StateDiscarded, At: time.Now()}
	return nil
}

func (l *ledger) TakeBack(_ context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.marks[fmt.Sprint(c, k)]
	if m.State != dlq.StateParked {
		return false, nil
	}
	m.Replay = max(m.Replay, replay)
	l.marks[fmt.Sprint(c, k)] = m
	return true, nil
}

func (l *ledger) Workers(context.Context, event.Consumer) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left {
		return 0, nil
	}
	return 2, nil
}

// leave has nobody be there.
func (l *ledger) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
}

// fixture is a system with a queue.
type fixture struct {
	t      testing.TB
	bus    *bus.Bus
	names  event.Names
	ledger *ledger
	queue  *dlq.Queue
}

func setup(t testing.TB) *fixture {
	t.Helper()
	b := bustest.NewBus(t)
	l := &ledger{marks: map[string]dlq.Mark{}}
	f := &fixture{t: t, bus: b, names: b.Names(), ledger: l, queue: dlq.Open(b, l)}
	f.start("payment")
	f.start("audit")
	return f
}

// start makes the durable of a consumer.
func (f *fixture) start(c event.Consumer) {
	f.t.Helper()
	_, err := f.bus.JetStream().CreateConsumer(f.t.Context(), f.names.EventsStream(), jetstream.ConsumerConfig{
		Durable: string(c), FilterSubjects: []string{f.names.RedriveFilter(c), f.names.TypeFilter("order.placed.v1")},
	})
	f.check(err)
}

// end removes it.
func (f *fixture) end(c event.Consumer) {
	f.t.Helper()
	f.check(f.bus.JetStream().DeleteConsumer(f.t.Context(), f.names.EventsStream(), string(c)))
}

// key is the event key of the n-th event.
func key(n int) event.EventKey { return event.NewEventKey("/order", fmt.Sprintf("id-%d", n)) }

// id is that of its letter for payment.
func id(n int) string { return "payment." + string(key(n)) }

// event is the n-th event as stored.
func (f *fixture) event(n int) *nats.Msg {
	return &nats.Msg{
		Subject: f.names.EventSubject("order.placed.v1", event.Key(fmt.Sprintf("ord-%d", n))),
		Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprintf("id-%d", n)}, "ce-source": {"/order"},
			"ce-type": {"order.placed.v1"}, "ce-partitionkey": {fmt.Sprintf("ord-%d", n)},
			nats.MsgIdHdr: {string(key(n))},
		},
		Data: []byte(`{"amount":9007199254740993,"z":1.0,"a":1}`),
	}
}

func (f *fixture) letter(c event.Consumer, n int, failed *nats.Msg, reason, text string) *nats.Msg {
	f.t.Helper()
	now := time.Now()
	m, err := dlq.Letter(f.names, failed, dlq.Origin{Stream: f.names.EventsStream(), Sequence: uint64(n), Time: now}, dlq.Story{
		Consumer: c, Reason: reason, Key: key(n), At: now, Host: "h", Version: "v", Failures: 1,
		Attempts: []event.Attempt{{Number: 1, At: now, Class: "timeout", Error: text}},
	}, f.bus.Conn().MaxPayload())
	f.check(err)
	return m
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) send(m *nats.Msg) error {
	p, err := f.bus.Send(f.t.Context(), m)
	if err != nil {
		return err
	}
	_, err = p.Wait(f.t.Context())
	return err
}

// park dead-letters the n-th event for consumer c.
func (f *fixture) park(c event.Consumer, n int) {
	f.t.Helper()
	f.parkAgain(c, n, f.event(n), event.ReasonExhausted)
}

func (f *fixture) parkAgain(c event.Consumer, n int, failed *nats.Msg, reason string) {
	f.t.Helper()
	f.check(f.send(f.letter(c, n, failed, reason, fmt.Sprintf("order %d timed out", n))))
	r, _ := dlq.RedriveOf(failed.Header)
	f.ledger.set(c, key(n), dlq.Mark{State: dlq.StateParked, Replay: r.Replay, At: time.Now()})
}

// handle does what the consumer does when replays of these events have taken effect.
func (f *fixture) handle(c event.Consumer, replay int, events ...int) {
	f.t.Helper()
	dead, err := f.bus.JetStream().Stream(f.t.Context(), f.names.DLQStream())
	f.check(err)
	for _, n := range events {
		f.ledger.set(c, key(n), dlq.Mark{State: dlq.StateDone, Replay: replay, At: time.Now()})
		f.check(dead.Purge(f.t.Context(), jetstream.WithPurgeSubject(f.names.DeadLetterFilter(c, "", key(n)))))
	}
}

// replaying counts the letters that are being replayed.
func (f *fixture) replaying() int {
	f.t.Helper()
	s, err := f.queue.Stats(f.t.Context())
	f.check(err)
	return s.Replayed
}

func (f *fixture) list(filter dlq.Filter, o dlq.PageOptions) dlq.Page {
	f.t.Helper()
	p, err := f.queue.List(f.t.Context(), filter, o)
	f.check(err)
	return p
}

// stored returns the messages of the event stream that match a subject filter.
func (f *fixture) stored(filter string) []*jetstream.RawStreamMsg {
	f.t.Helper()
	s, err := f.bus.JetStream().Stream(f.t.Context(), f.names.EventsStream())
	f.check(err)
	info, err := s.Info(f.t.Context())
	f.check(err)
	var found []*jetstream.RawStreamMsg
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; {
		m, err := s.GetMsg(f.t.Context(), seq, jetstream.WithGetMsgSubject(filter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		f.check(err)
		found = append(found, m)
		seq = m.Sequence + 1
	}
	return found
}

func (f *fixture) replay(s dlq.Selection, o dlq.ReplayOptions) (dlq.Summary, []dlq.Result) {
	f.t.Helper()
	var results []dlq.Result
	sum, err := f.queue.Replay(f.t.Context(), s, o, func(r dlq.Result) { results = append(results, r) })
	f.check(err)
	return sum, results
}

// expect compares a summary with "status n" pairs.
func (f *fixture) expect(s dlq.Summary, want map[dlq.Status]int) {
	f.t.Helper()
	if fmt.Sprint(s.Counts) != fmt.Sprint(want) {
		f.t.Errorf("counts %v, want %v", s.Counts, want)
	}
}

func TestA_missing_stream_is_named(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.check(f.bus.JetStream().DeleteStream(f.t.Context(), f.names.DLQStream()))
	_, err := f.queue.List(f.t.Context(), dlq.Filter{}, dlq.PageOptions{})
	if !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("list: %v", err)
	}
	if err := f.send(f.letter("payment", 1, f.event(1), event.ReasonExhausted, "e")); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("park: %v", err)
	}
}

func TestA_full_queue_refuses_and_evicts_nothing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s, err := f.bus.JetStream().Stream(f.t.Context(), f.names.DLQStream())
	f.check(err)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs = 5
	_, err = f.bus.JetStream().UpdateStream(f.t.Context(), cfg)
	f.check(err)
	for n := range 5 {
		f.park("payment", n)
	}
	if err := f.send(f.letter("payment", 5, f.event(5), event.ReasonExhausted, "e")); !errors.Is(err, bus.ErrStreamFull) {
		t.Errorf("the sixth: %v, want ErrStreamFull", err)
	}
	f.park("payment", 0) // parking again replaces, also when full
	if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 5 || len(p.Entries) != 5 {
		t.Errorf("%d of %d entries", len(p.Entries), p.Total)
	}
}

func TestControl_headers_take_no_effect(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	m := f.event(2)
	m.Header["Nats-Expected-Last-Subject-Sequence"] = []string{"7"}
	m.Header["Nats-TTL"] = []string{"1s"}
	m.Header["Nats-Rollup"] = []string{"all"}
	f.parkAgain("payment", 2, m, event.ReasonExhausted)
	if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 2 {
		t.Fatalf("%d entries", p.Total)
	}
	c, err := f.queue.Get(f.t.Context(), id(2))
	f.check(err)
	if got := c.Letter.Headers["dlq-original-Nats-TTL"]; len(got) != 1 || got[0] != "1s" {
		t.Errorf("headers %v", c.Letter.Headers)
	}
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 2})
	if got := f.stored(f.names.RedriveFilter("payment")); len(got) != 2 || got[1].Header.Get("Nats-TTL") != "" {
		t.Errorf("%d replays stored", len(got))
	}
}

func TestParking_again_leaves_one_entry(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for range 3 {
		f.park("payment", 1)
	}
	f.park("payment", 2)
	if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 2 || p.Matching != 2 {
		t.Errorf("%d of %d entries", p.Matching, p.Total)
	}
	// A crash before the mark can make the next run give up for another reason.
	for _, remove := range []func(dlq.Selection) (dlq.Summary, error){
		func(s dlq.Selection) (dlq.Summary, error) {
			return f.queue.Replay(f.t.Context(), s, dlq.ReplayOptions{}, nil)
		},
		func(s dlq.Selection) (dlq.Summary, error) {
			return f.queue.Discard(f.t.Context(), s, dlq.DiscardOptions{}, nil)
		},
	} {
		for _, s := range []dlq.Selection{{IDs: []string{id(1)}}, {Filter: dlq.Filter{Key: "ord-1"}}} {
			f.park("payment", 1)
			f.parkAgain("payment", 1, f.event(1), event.ReasonCrashLoop)
			p := f.list(dlq.Filter{}, dlq.PageOptions{})
			if p.Total != 2 || p.Matching != 2 || p.Entries[0].Reason != event.ReasonCrashLoop {
				t.Errorf("%d of %d entries: %+v", p.Matching, p.Total, p.Entries)
			}
			if p := f.list(dlq.Filter{Reason: event.ReasonExhausted}, dlq.PageOptions{}); p.Matching != 1 {
				t.Errorf("%d entries under the old reason", p.Matching)
			}
			sum, err := remove(s)
			f.check(err)
			if sum.Selected != 1 || sum.Reached() != 1 {
				t.Errorf("%+v", sum)
			}
			f.handle("payment", 1, 1) // if it was replayed
			if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 1 {
				t.Errorf("%d entries are left, want that of the other event", p.Total)
			}
		}
	}
}

func TestList_pages_newest_first(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 10 {
		f.park("payment", n)
		f.park("audit", n)
	}
	var seen []string
	for cursor := uint64(0); ; {
		p := f.list(dlq.Filter{Consumer: "payment"}, dlq.PageOptions{Limit: 4, Cursor: cursor})
		if p.Matching != 10 || p.Total != 20 {
			t.Fatalf("%d of %d", p.Matching, p.Total)
		}
		for _, e := range p.Entries {
			seen = append(seen, e.ID)
		}
		if cursor = p.Next; cursor == 0 {
			break
		}
	}
	if len(seen) != 10 {
		t.Fatalf("%d entries", len(seen))
	}
	for i, got := range seen {
		if want := id(9 - i); got != want {
			t.Errorf("entry %d is %s, want %s", i, got, want)
		}
	}
	if p := f.list(dlq.Filter{Consumer: "nobody"}, dlq.PageOptions{}); len(p.Entries) != 0 || p.Total != 20 {
		t.Errorf("%+v", p)
	}
	middle := f.list(dlq.Filter{Key: "ord-5"}, dlq.PageOptions{}).Entries
	if len(middle) != 2 {
		t.Fatalf("%d entries of one key", len(middle))
	}
	younger := f.list(dlq.Filter{After: middle[1].Stored}, dlq.PageOptions{}).Matching
	older := f.list(dlq.Filter{Before: middle[1].Stored}, dlq.PageOptions{}).Matching
	if younger != 10 || older != 10 {
		t.Errorf("%d younger and %d older", younger, older)
	}
}

func TestGet_tells_what_became_of_an_event(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.park("payment", 2)
	f.park("audit", 2)
	c, err := f.queue.Get(f.t.Context(), string(key(1)))
	f.check(err)
	if c.ID != id(1) || c.Letter == nil || c.Mark == nil || !bytes.Equal(c.Letter.Data, f.event(1).Data) || len(c.Letter.Attempts) != 1 {
		t.Errorf("%+v", c)
	}
	if _, err := f.queue.Get(f.t.Context(), string(key(2))); !errors.Is(err, dlq.ErrAmbiguous) {
		t.Errorf("of two consumers: %v", err)
	}
	for _, unknown := range []string{id(3), string(key(3))} {
		if _, err := f.queue.Get(f.t.Context(), unknown); !errors.Is(err, dlq.ErrNotFound) {
			t.Errorf("unknown: %v", err)
		}
	}
	if _, err := f.queue.Get(f.t.Context(), "payment.*"); !errors.Is(err, dlq.ErrSelection) {
		t.Errorf("wildcard: %v", err)
	}
	f.replay(dlq.Selection{IDs: []string{id(1)}}, dlq.ReplayOptions{})
	f.handle("payment", 1, 1)
	at := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	f.ledger.set("payment", key(1), dlq.Mark{
		State: dlq.StateDone, Replay: 1, At: at, First: &event.Attempt{At: at, Class: "timeout", Error: "gateway"},
	})
	c, err = f.queue.Get(f.t.Context(), id(1))
	f.check(err)
	want := "handled by replay 1 at 2026-03-01T10:00:00Z; first failure 2026-03-01T10:00:00Z: timeout: gateway"
	if c.Letter != nil || c.Verdict != want {
		t.Errorf("verdict %q of %+v", c.Verdict, c)
	}
}

func TestStats_group_by_kind_of_failure(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 6 {
		f.park("payment", n)
	}
	f.check(f.send(f.letter("audit", 1, f.event(1), event.ReasonPermanent, "no such account")))
	s, err := f.queue.Stats(f.t.Context())
	f.check(err)
	if s.Total != 7 || s.LastHour != 7 || s.LastDay != 7 || len(s.Groups) != 2 || s.Consumers["payment"]["exhausted"] != 6 || s.Consumers["audit"]["permanent"] != 1 {
		t.Fatalf("%+v", s)
	}
	g := s.Groups[0]
	if g.Count != 6 || g.Error != "order <n> timed out" || g.Type != "order.placed.v1" || g.Example != id(5) || g.Consumers["payment"] != 6 || g.Newest.Before(g.Oldest) {
		t.Errorf("%+v", g)
	}
	if p := f.list(dlq.Filter{Fingerprint: g.Fingerprint}, dlq.PageOptions{}); p.Matching != 6 {
		t.Errorf("%d entries of the group", p.Matching)
	}
}

func TestExport_writes_every_letter_exactly(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 5 {
		f.park("payment", n)
	}
	f.park("audit", 1)
	var out bytes.Buffer
	n, err := f.queue.Export(f.t.Context(), &out, dlq.Filter{Consumer: "payment"})
	f.check(err)
	if n != 5 {
		t.Errorf("%d letters", n)
	}
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 5 {
		t.Fatalf("%d lines", len(lines))
	}
	var r struct {
		ID   string `json:"id"`
		Data []byte `json:"data_base64"`
	}
	f.check(json.Unmarshal(lines[4], &r))
	if r.ID != id(4) || !bytes.Equal(r.Data, f.event(4).Data) {
		t.Errorf("%s", lines[4])
	}
}
