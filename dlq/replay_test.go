package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

func TestA_replayed_event_is_the_original(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.replay(dlq.Selection{IDs: []string{id(1)}}, dlq.ReplayOptions{})
	got := f.stored(f.names.RedriveFilter("payment"))
	if len(got) != 1 || !bytes.Equal(got[0].Data, f.event(1).Data) {
		t.Fatalf("replayed %+v", got)
	}
	for name, values := range f.event(1).Header {
		if name != nats.MsgIdHdr && fmt.Sprint(got[0].Header[name]) != fmt.Sprint(values) {
			t.Errorf("%s is %v", name, got[0].Header[name])
		}
	}
	if r, ok := dlq.RedriveOf(got[0].Header); !ok || r.Replay != 1 || r.Key != key(1) {
		t.Errorf("redrive %+v", r)
	}
}

func TestReplay_reaches_only_the_consumer_that_failed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.check(f.send(f.event(1)))
	f.park("payment", 1)
	f.park("audit", 1)
	sum, _ := f.replay(dlq.Selection{IDs: []string{id(1)}}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	for filter, want := range map[string]int{
		f.names.RedriveFilter("payment"): 1, f.names.RedriveFilter("audit"): 0, f.names.EventsFilter(): 1,
	} {
		if got := f.stored(filter); len(got) != want {
			t.Errorf("%s: %d messages, want %d", filter, len(got), want)
		}
	}
	for _, e := range f.list(dlq.Filter{}, dlq.PageOptions{}).Entries {
		if (e.Replay != nil) != (e.Consumer == "payment") {
			t.Errorf("%s: replay %+v", e.ID, e.Replay)
		}
	}
}

// The partition is that of now: the event may be from a time before partitions, or
// of other ones.
func TestReplay_goes_into_the_partition_of_its_key(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i, partitions := range []int{0, 7, event.DefaultPartitions} {
		failed := f.event(i)
		failed.Subject = f.names.Stored(failed.Subject, partitions)
		f.check(f.send(f.letter("payment", i, failed, event.ReasonExhausted, "e")))
	}
	nameless := f.event(3)
	nameless.Subject, nameless.Data = "a..b", []byte("no event")
	nameless.Header = nats.Header{}
	f.check(f.send(f.letter("payment", 3, nameless, event.ReasonDecode, "e")))
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{Force: true})
	for _, k := range []event.Key{"ord-0", "ord-1", "ord-2", event.Key(key(3))} {
		filter := f.names.RedrivePartitionFilter("payment", event.PartitionOf(k, event.DefaultPartitions))
		if got := f.stored(strings.TrimSuffix(filter, "*") + string(k)); len(got) != 1 {
			t.Errorf("%d replays of %s in its partition", len(got), k)
		}
	}
}

func TestPoison_that_comes_back_is_not_read_again(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 20 {
		f.park("payment", n)
	}
	n := 0
	sum, err := f.queue.Replay(f.t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, func(dlq.Result) {
		if n%2 == 0 { // its consumer parks it again at once
			replays := f.stored(f.names.RedriveFilter("payment"))
			m := replays[len(replays)-1]
			f.parkAgain("payment", n, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, event.ReasonExhausted)
		}
		n++
	})
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 20})
	for n := 1; n < 20; n += 2 {
		f.handle("payment", 1, n)
	}
	p := f.list(dlq.Filter{}, dlq.PageOptions{})
	if p.Total != 10 {
		t.Errorf("%d entries, want 10", p.Total)
	}
	for _, e := range p.Entries {
		if e.Replay != nil || e.Count != 2 || e.Origin.Stream != f.names.EventsStream() {
			t.Errorf("%+v", e)
		}
	}
	// Its next replay is another message, not a duplicate of the first.
	sum, _ = f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 10})
	replays := f.stored(f.names.RedriveFilter("payment"))
	if len(replays) != 30 {
		t.Fatalf("%d replays stored, want 30", len(replays))
	}
	if r, _ := dlq.RedriveOf(replays[29].Header); r.Replay != 2 {
		t.Errorf("second replay is %+v", r)
	}
}

func TestAn_interrupted_replay_run_again_sends_each_once(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const entries = 100
	for n := range entries {
		f.park("payment", n)
	}
	ctx, stop := context.WithCancel(f.t.Context())
	defer stop()
	reports := 0
	sum, err := f.queue.Replay(ctx, dlq.Selection{All: true}, dlq.ReplayOptions{}, func(dlq.Result) {
		if reports++; reports == 40 {
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) || sum.Selected != entries || sum.Reached() != 40 {
		t.Fatalf("interrupted: %+v, %v", sum, err)
	}
	// A kill -9 can also strike between the replay and the letter's removal.
	s, err := f.bus.JetStream().Stream(f.t.Context(), f.names.DLQStream())
	f.check(err)
	m, err := s.GetLastMsgForSubject(f.t.Context(), f.names.DeadLetterSubject("payment", event.ReasonExhausted, key(70)))
	f.check(err)
	redrive, err := dlq.NewStream(f.bus, f.ledger).RedriveMessage(m, 1)
	f.check(err)
	f.check(f.send(redrive))

	sum, _ = f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: entries - 41, dlq.InProgress: 41})
	ids := map[string]int{}
	for _, m := range f.stored(f.names.RedriveFilter("payment")) {
		ids[m.Header.Get(nats.MsgIdHdr)]++
	}
	if len(ids) != entries {
		t.Errorf("%d replays, want %d", len(ids), entries)
	}
	for id, n := range ids {
		if n != 1 {
			t.Errorf("%s is stored %d times", id, n)
		}
	}
	if n := f.replaying(); n != entries {
		t.Errorf("%d letters say that they are being replayed", n)
	}
}

func TestReplay_keeps_to_the_rate(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 6 {
		f.park("payment", n)
	}
	begin := time.Now()
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{Rate: 25})
	if took := time.Since(begin); took < 5*time.Second/25 {
		t.Errorf("6 replays in %v", took)
	}
	f.handle("payment", 1, 0, 1, 2, 3, 4, 5)
	f.park("payment", 1)
	f.park("payment", 2)
	ctx, stop := context.WithCancel(f.t.Context())
	defer stop()
	sum, err := f.queue.Replay(ctx, dlq.Selection{All: true}, dlq.ReplayOptions{Rate: 0.001}, func(dlq.Result) {
		time.AfterFunc(20*time.Millisecond, stop)
	})
	if !errors.Is(err, context.Canceled) || sum.Reached() != 1 || sum.Selected != 2 {
		t.Errorf("stopped while waiting for the rate: %+v, %v", sum, err)
	}
}

// The letters of a stream made anew have the sequences of those before, and an
// event that was published again has the same key and count.
func TestReplay_from_a_dead_letter_stream_made_anew(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for range 2 {
		f.park("payment", 1)
		sum, _ := f.replay(dlq.Selection{IDs: []string{id(1)}}, dlq.ReplayOptions{})
		f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
		f.check(f.bus.JetStream().DeleteStream(t.Context(), f.names.DLQStream()))
		_, err := topology.Provision(t.Context(), f.bus, topology.New(f.bus.Names(), topology.Config{}))
		f.check(err)
	}
	if got := f.stored(f.names.RedriveFilter("payment")); len(got) != 2 {
		t.Errorf("%d replays stored, want 2", len(got))
	}
}

func TestReplay_asks_the_ledger_first(t *testing.T) {
	t.Parallel()
	f := setup(t)
	states := map[int]dlq.Mark{
		1: {State: dlq.StateDone, Replay: 1}, 2: {State: dlq.StateClaimed}, 3: {State: dlq.StateWaiting},
		4: {State: dlq.StateParked, Replay: 6}, 5: {State: dlq.StateDone}, 6: {State: dlq.StateClaimed},
	}
	var ids []string
	for n := range 9 {
		if n < 5 {
			f.park("payment", n)
		}
		ids = append(ids, id(n))
	}
	f.ledger.forget("payment", key(0))
	for n, m := range states {
		f.ledger.set("payment", key(n), m)
	}
	want := []dlq.Status{
		dlq.Refused, dlq.AlreadyHandled, dlq.InProgress, dlq.InProgress, dlq.WouldReplay,
		dlq.AlreadyHandled, dlq.InProgress, dlq.NotFound, dlq.NotFound,
	}
	for _, dry := range []bool{true, false} {
		if !dry {
			want[4] = dlq.Replayed
		}
		_, results := f.replay(dlq.Selection{IDs: ids}, dlq.ReplayOptions{DryRun: dry})
		for i, r := range results {
			if r.Status != want[i] || r.ID != ids[i] {
				t.Errorf("dry %v: %d is %+v, want %s", dry, i, r, want[i])
			}
		}
		if !errors.Is(results[0].Err, dlq.ErrRefused) || results[0].Message == "" {
			t.Errorf("refused because of %v", results[0].Err)
		}
		left := map[bool]int{true: 5, false: 4}[dry]
		if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != left {
			t.Errorf("dry %v: %d entries are left, want %d", dry, p.Total, left)
		}
	}
	replays := f.stored(f.names.RedriveFilter("payment"))
	if len(replays) != 1 {
		t.Fatalf("%d replays", len(replays))
	}
	if r, _ := dlq.RedriveOf(replays[0].Header); r.Replay != 7 {
		t.Errorf("replay %d must be newer than the mark's", r.Replay)
	}
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{Force: true})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 4})
}

func TestReplay_of_an_entry_that_is_gone_meanwhile(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.park("payment", 2)
	first := true
	sum, err := f.queue.Replay(f.t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, func(dlq.Result) {
		if first { // somebody else replays the second one
			first = false
			f.replay(dlq.Selection{IDs: []string{id(2)}}, dlq.ReplayOptions{})
		}
	})
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1, dlq.InProgress: 1})
}

func TestSelection_must_say_one_thing(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	for _, s := range []dlq.Selection{
		{},
		{All: true, IDs: []string{id(1)}},
		{All: true, Filter: dlq.Filter{Key: "k"}},
		{IDs: []string{"payment.>"}},
		{Filter: dlq.Filter{Consumer: "*"}},
	} {
		if _, err := f.queue.Replay(f.t.Context(), s, dlq.ReplayOptions{}, nil); !errors.Is(err, dlq.ErrSelection) {
			t.Errorf("replay %+v: %v", s, err)
		}
		if _, err := f.queue.Discard(f.t.Context(), s, dlq.DiscardOptions{}, nil); !errors.Is(err, dlq.ErrSelection) {
			t.Errorf("discard %+v: %v", s, err)
		}
	}
}

func TestDiscard_removes_letter_and_mark(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 3 {
		f.park("payment", n)
	}
	f.ledger.set("payment", key(2), dlq.Mark{State: dlq.StateWaiting})
	sum, err := f.queue.Discard(f.t.Context(), dlq.Selection{All: true}, dlq.DiscardOptions{DryRun: true}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.WouldDiscard: 2, dlq.InProgress: 1})
	sum, err = f.queue.Discard(f.t.Context(), dlq.Selection{All: true}, dlq.DiscardOptions{}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Discarded: 2, dlq.InProgress: 1})
	c, err := f.queue.Get(f.t.Context(), id(1))
	f.check(err)
	if c.Mark.State != dlq.StateDiscarded || !strings.HasPrefix(c.Verdict, "discarded at ") {
		t.Errorf("after discarding: %+v", c)
	}
	_, results := f.replay(dlq.Selection{IDs: []string{id(1)}}, dlq.ReplayOptions{})
	if results[0].Status != dlq.NotFound || !strings.Contains(results[0].Message, "discarded") {
		t.Errorf("replay of a discarded event: %+v", results[0])
	}
	if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 1 {
		t.Errorf("%d entries are left", p.Total)
	}
	if got := f.stored(f.names.RedriveFilter("payment")); len(got) != 0 {
		t.Errorf("%d replays", len(got))
	}
	sum, err = f.queue.Discard(f.t.Context(), dlq.Selection{IDs: []string{id(2)}}, dlq.DiscardOptions{Force: true}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Discarded: 1})
}

// fill stores letters of n events fast and removes every 500th.
func (f *fixture) fill(n int) {
	f.t.Helper()
	js := f.bus.JetStream()
	letter := f.letter("payment", 0, f.event(0), event.ReasonExhausted, "")
	for i := range n {
		header := maps.Clone(letter.Header)
		header["dlq-error"] = []string{fmt.Sprintf("order%%20%d%%20timed%%20out", i)}
		_, err := js.PublishMsgAsync(&nats.Msg{
			Subject: f.names.DeadLetterSubject("payment", event.ReasonExhausted, key(i)),
			Header:  header, Data: letter.Data,
		}, jetstream.WithStallWait(time.Minute)) // a busy machine is slow
		f.check(err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-f.t.Context().Done():
		f.t.Fatal("the letters were not stored")
	}
	s, err := js.Stream(f.t.Context(), f.names.DLQStream())
	f.check(err)
	for i := 0; i < n; i += 500 {
		f.check(s.DeleteMsg(f.t.Context(), uint64(i+1)))
	}
}

func TestTen_thousand_entries_are_listed_fast_and_untouched(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.fill(10_200)
	s, err := f.bus.JetStream().Stream(f.t.Context(), f.names.DLQStream())
	f.check(err)
	before, err := s.Info(f.t.Context())
	f.check(err)

	begin := time.Now()
	p := f.list(dlq.Filter{}, dlq.PageOptions{})
	t.Logf("first page in %v", time.Since(begin))
	if p.Total != 10_179 || p.Matching != 10_179 || len(p.Entries) != 50 || p.Entries[0].ID != id(10_199) {
		t.Fatalf("%d of %d, first %s", p.Matching, p.Total, p.Entries[0].ID)
	}
	seen := map[string]bool{}
	for o := (dlq.PageOptions{Limit: 5000}); ; {
		p := f.list(dlq.Filter{}, o)
		for _, e := range p.Entries {
			seen[e.ID] = true
		}
		if o.Cursor = p.Next; o.Cursor == 0 {
			break
		}
	}
	if len(seen) != 10_179 {
		t.Errorf("paged through %d entries", len(seen))
	}
	if p := f.list(dlq.Filter{Text: "order 77 "}, dlq.PageOptions{}); p.Matching != 1 {
		t.Errorf("%d entries match the text", p.Matching)
	}
	after, err := s.Info(f.t.Context())
	f.check(err)
	if after.State.Msgs != before.State.Msgs || after.State.LastSeq != before.State.LastSeq || after.State.Consumers != 0 {
		t.Errorf("listing changed the stream: %+v, was %+v", after.State, before.State)
	}
}

func BenchmarkList_10000(b *testing.B) {
	f := setup(b)
	f.fill(10_000)
	for _, bench := range []struct {
		name   string
		filter dlq.Filter
	}{{"all", dlq.Filter{}}, {"by_text", dlq.Filter{Text: "order 77 "}}} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				_, err := f.queue.List(f.t.Context(), bench.filter, dlq.PageOptions{})
				f.check(err)
			}
		})
	}
}

func TestLetters_of_other_tools_can_be_listed_replayed_and_discarded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	subjects := []string{"dlq.Odd", "dlq.Odd.why", "dlq.Odd.why.a.b.c", "dlq.payment.why.UPPER"}
	for _, s := range subjects {
		f.check(f.send(&nats.Msg{Subject: f.names.Root(s), Header: nats.Header{"dlq-subject": {"a.*.>"}}, Data: []byte("x")}))
	}
	p := f.list(dlq.Filter{}, dlq.PageOptions{})
	if len(p.Entries) != len(subjects) {
		t.Fatalf("%d entries", len(p.Entries))
	}
	if _, err := f.queue.Get(f.t.Context(), "Odd.a.b.c"); err != nil {
		t.Errorf("get: %v", err)
	}
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Refused: 4})
	sum, _ = f.replay(dlq.Selection{IDs: []string{"payment.UPPER"}}, dlq.ReplayOptions{Force: true})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	if got := f.stored(f.names.RedriveFilter("payment")); len(got) != 1 {
		t.Errorf("%d replays", len(got))
	}
	sum, err := f.queue.Discard(f.t.Context(), dlq.Selection{All: true}, dlq.DiscardOptions{}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Discarded: 3, dlq.InProgress: 1})
}
