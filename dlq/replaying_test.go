package dlq_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// get returns the letter of the n-th event for payment.
func (f *fixture) get(n int) dlq.Case {
	f.t.Helper()
	c, err := f.queue.Get(f.t.Context(), id(n))
	f.check(err)
	return c
}

func (f *fixture) takeBack(n int, want dlq.Status) {
	f.t.Helper()
	sum, err := f.queue.TakeBack(f.t.Context(), dlq.Selection{IDs: []string{id(n)}}, dlq.TakeBackOptions{}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{want: 1})
}

func TestA_letter_that_is_being_replayed_is_not_gone(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	before := f.list(dlq.Filter{}, dlq.PageOptions{}).Entries[0]
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{By: "ada@\u202ehost"})
	for _, tt := range []struct {
		mark    dlq.Mark
		state   string
		verdict string
	}{
		{dlq.Mark{State: dlq.StateParked}, dlq.ReplayWaiting, "replayed, waiting for payment, 2 workers of it are there; sent "},
		{dlq.Mark{State: dlq.StateClaimed, Replay: 1}, dlq.ReplayRunning, "replayed, payment has it now; sent "},
		{dlq.Mark{State: dlq.StateWaiting, Replay: 1, Failures: 1}, dlq.ReplayRetrying, "replayed, failed, and waiting for its next attempt"},
		{dlq.Mark{State: dlq.StateDone, Replay: 1}, dlq.ReplayHandled, "replayed and handled; its letter is left over"},
	} {
		f.ledger.set("payment", key(1), tt.mark)
		c := f.get(1)
		if c.Letter == nil || c.Letter.Replay == nil || c.Letter.Replay.State != tt.state || !strings.HasPrefix(c.Verdict, tt.verdict) {
			t.Fatalf("show: %+v", c)
		}
		listed := f.list(dlq.Filter{}, dlq.PageOptions{}).Entries[0]
		var exported dlq.Record
		f.check(dlq.NewStream(f.bus, f.ledger).Scan(t.Context(), dlq.Filter{}, true, func(r dlq.Record) error {
			exported = r
			return nil
		}))
		for what, e := range map[string]dlq.Entry{"show": c.Letter.Entry, "list": listed, "export": exported.Entry} {
			r := e.Replay
			if r == nil || r.State != tt.state || r.Number != 1 || r.By != "ada@\u202ehost" || time.Since(r.At) > time.Hour || *r.Workers != 2 {
				t.Errorf("%s: %+v", what, r)
			}
			if !e.Stored.Equal(before.Stored) || e.State() != "replayed" || e.Reason != before.Reason || e.Error != before.Error || e.Count != 1 {
				t.Errorf("%s changed: %+v", what, e)
			}
		}
		if len(c.Letter.Headers) != len(f.event(1).Header) {
			t.Errorf("headers of the event: %v", c.Letter.Headers)
		}
	}
	// What an older version of the consumer has handled and left the next replay removes.
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.AlreadyHandled: 1})
	if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 0 {
		t.Errorf("%d letters", p.Total)
	}
}

func TestA_replay_that_fails_again_is_one_letter_with_its_story(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, reason := range []string{event.ReasonExhausted, event.ReasonPermanent} {
		f.park("payment", 1)
		f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
		replays := f.stored(f.names.RedriveFilter("payment"))
		m := replays[len(replays)-1]
		f.parkAgain("payment", 1, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, reason)
		p := f.list(dlq.Filter{}, dlq.PageOptions{})
		if p.Total != 1 || p.Entries[0].Replay != nil || p.Entries[0].Reason != reason || p.Entries[0].Count < 2 {
			t.Errorf("%s: %d letters: %+v", reason, p.Total, p.Entries)
		}
		if c := f.get(1); len(c.Letter.Attempts) < 2 || !strings.HasPrefix(c.Verdict, "parked by replay ") {
			t.Errorf("%s: %q, %d attempts", reason, c.Verdict, len(c.Letter.Attempts))
		}
	}
}

func TestBulk_replays_at_once_send_each_letter_once_and_report_no_error(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const entries, replays = 60, 4
	for n := range entries {
		f.park("payment", n)
	}
	var wg sync.WaitGroup
	sums := make([]dlq.Summary, replays)
	for i := range sums {
		wg.Go(func() {
			queue := dlq.Open(f.bus, f.ledger)
			sum, err := queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, func(r dlq.Result) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			})
			if err != nil {
				t.Error(err)
			}
			sums[i] = sum
		})
	}
	wg.Wait()
	total := map[dlq.Status]int{}
	for _, sum := range sums {
		for status, n := range sum.Counts {
			total[status] += n
		}
	}
	if want := map[dlq.Status]int{dlq.Replayed: entries, dlq.InProgress: entries * (replays - 1)}; fmt.Sprint(total) != fmt.Sprint(want) {
		t.Errorf("counts %v, want %v", total, want)
	}
	if got := len(f.stored(f.names.RedriveFilter("payment"))); got != entries || f.replaying() != entries {
		t.Errorf("%d replays stored, %d letters say so; want %d", got, f.replaying(), entries)
	}
}

func TestA_replay_is_taken_back_while_nobody_has_begun_it(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 3 {
		f.park("payment", n)
	}
	f.takeBack(0, dlq.NotReplayed)
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.ledger.set("payment", key(1), dlq.Mark{State: dlq.StateClaimed, Replay: 1})
	f.takeBack(1, dlq.InProgress)
	f.ledger.set("payment", key(2), dlq.Mark{State: dlq.StateDone, Replay: 1})
	f.takeBack(2, dlq.AlreadyHandled)

	sum, err := f.queue.TakeBack(t.Context(), dlq.Selection{All: true}, dlq.TakeBackOptions{DryRun: true}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.WouldTakeBack: 1, dlq.InProgress: 1})
	f.takeBack(0, dlq.TakenBack)
	if c := f.get(0); c.Letter.Replay != nil || c.Mark.Replay != 1 || c.Letter.Error != "order 0 timed out" {
		t.Errorf("after it: %+v", c)
	}
	if left := len(f.stored(f.names.RedriveFilter("payment"))); left != 2 {
		t.Errorf("%d replays are stored, want those of the others", left)
	}
	f.takeBack(0, dlq.NotReplayed)
	// It can be replayed again, by a newer replay.
	sum, _ = f.replay(dlq.Selection{IDs: []string{id(0)}}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	if c := f.get(0); c.Letter.Replay == nil || c.Letter.Replay.Number != 2 {
		t.Errorf("again: %+v", c.Letter.Replay)
	}
}

// Whoever takes a replay back and dies after the ledger has been told leaves a letter
// that says that it is being replayed, and a ledger that knows better.
func TestA_replay_that_was_half_taken_back_is_over(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.ledger.set("payment", key(1), dlq.Mark{State: dlq.StateParked, Replay: 1})
	if c := f.get(1); c.Letter.Replay != nil || f.replaying() != 0 {
		t.Errorf("%+v", c.Letter.Replay)
	}
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	if c := f.get(1); c.Letter.Replay == nil || c.Letter.Replay.Number != 2 {
		t.Errorf("again: %+v", c.Letter.Replay)
	}
}

func TestA_replay_that_the_event_stream_has_dropped_is_sent_again(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	events, err := f.bus.JetStream().Stream(t.Context(), f.names.EventsStream())
	f.check(err)
	f.check(events.Purge(t.Context()))
	if c := f.get(1); c.Letter.Replay.State != dlq.ReplayLost || !strings.Contains(c.Verdict, "replay it again") {
		t.Errorf("%+v: %s", c.Letter.Replay, c.Verdict)
	}
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	if c := f.get(1); c.Letter.Replay.State != dlq.ReplayWaiting || len(f.stored(f.names.RedriveFilter("payment"))) != 1 {
		t.Errorf("again: %+v", c.Letter.Replay)
	}
}

func TestA_letter_without_room_is_replayed_all_the_same(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	dead, err := f.bus.JetStream().Stream(t.Context(), f.names.DLQStream())
	f.check(err)
	info, err := dead.Info(t.Context())
	f.check(err)
	cfg := info.Config
	cfg.MaxBytes = int64(info.State.Bytes)
	_, err = f.bus.JetStream().UpdateStream(t.Context(), cfg)
	f.check(err)
	sum, _ := f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	if p := f.list(dlq.Filter{}, dlq.PageOptions{}); p.Total != 1 {
		t.Errorf("%d letters", p.Total)
	}
}

func TestDiscard_leaves_what_is_being_replayed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.replay(dlq.Selection{All: true}, dlq.ReplayOptions{})
	sum, err := f.queue.Discard(t.Context(), dlq.Selection{All: true}, dlq.DiscardOptions{}, nil)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.InProgress: 1})
}
