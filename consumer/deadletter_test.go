package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// poisoned fails for ever on ids that begin with "bad", while broken.
func poisoned(runs *tally, broken *atomic.Bool) *consumer.Registry {
	broken.Store(true)
	return handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		if strings.HasPrefix(e.ID(), "bad") && broken.Load() {
			return consumer.Step{}, errFlaky
		}
		return consumer.Step{}, nil
	})
}

func TestMissing_dead_letter_stream_loses_nothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if err := s.bus.JetStream().DeleteStream(t.Context(), s.bus.Names().DLQStream()); err != nil {
		t.Fatal(err)
	}
	var runs tally
	p := s.start(config(), poisoned(&runs, new(atomic.Bool)), nil)
	s.publish(draft("bad"))
	healthy := s.publishN(50)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 50 })
	bustest.Eventually(t, soon, func() bool {
		err := p.Health()
		return errors.Is(err, consumer.ErrUnhealthy) && errors.Is(err, bus.ErrNoStream)
	})
	if info, err := s.durable("payment"); err != nil || info.NumAckPending != 1 {
		t.Errorf("%v pending, %v; want the poison", info, err)
	}
	bustest.Provision(t, s.bus, topology.Config{})
	l := s.letter()
	s.settled("payment")
	if l.EventID != "bad" || l.Reason != event.ReasonExhausted || l.Failures != 3 || len(l.Attempts) != 3 {
		t.Errorf("letter is of %s, %s after %d failures; want bad, exhausted after 3", l.EventID, l.Reason, l.Failures)
	}
	if n := runs.of("bad"); n != 3 {
		t.Errorf("the handler ran %d times, want not again while the letter could not be stored", n)
	}
	if n := p.Stats().Retried; n > 4 {
		t.Errorf("%d retries, want few while the stream is missing", n)
	}
	if err := p.Health(); err != nil {
		t.Errorf("unhealthy after the letter was stored: %v", err)
	}
	for _, e := range healthy {
		if n := runs.of(e.ID()); n != 1 {
			t.Errorf("%s ran %d times, want once", e.ID(), n)
		}
	}
}

func TestFull_dead_letter_stream_keeps_the_next_one_pending(t *testing.T) {
	t.Parallel()
	s := bareSystem(t)
	bustest.Provision(t, s.bus, topology.Config{DLQMaxMsgs: 5})
	p := s.start(config(), handling(func(context.Context, event.Event) (consumer.Step, error) {
		return consumer.Step{}, consumer.Permanent(errFlaky)
	}), nil)
	s.publishN(6)
	bustest.Eventually(t, soon, func() bool { return errors.Is(p.Health(), bus.ErrStreamFull) })
	bustest.Eventually(t, soon, func() bool { return len(s.letters()) == 5 })
	bustest.Eventually(t, soon, func() error {
		info, err := s.durable("payment")
		if err == nil && info.NumAckPending != 1 {
			err = fmt.Errorf("%d pending, want the sixth", info.NumAckPending)
		}
		return err
	})
	if _, err := s.queue().Discard(t.Context(), dlq.Selection{IDs: []string{s.letters()[0].ID}}, dlq.DiscardOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
	if n := len(s.letters()); n != 5 {
		t.Errorf("%d letters, want the sixth in the place of the discarded one", n)
	}
}

func TestError_text_cannot_become_headers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	text := "l1\r\nNats-Msg-Id: x\r\n\r\nboom é\x1b[2J"
	s.start(config(), handling(func(context.Context, event.Event) (consumer.Step, error) {
		return consumer.Step{}, consumer.Permanent(errors.New(text))
	}), nil)
	e := s.publishN(1)[0]
	l := s.letter()
	if l.Error != text || !bytes.Equal(l.Data, e.Data()) {
		t.Errorf("letter tells %q of data %q, want %q of %q", l.Error, l.Data, text, e.Data())
	}
	m := s.messages(s.bus.Names().DLQStream(), s.bus.Names().DeadLetterFilter("payment", "", ""))[0]
	for name, values := range m.Header {
		// The letter's headers are the event's and the record's; the server adds none to what is stored.
		if !strings.HasPrefix(name, "ce-") && !strings.HasPrefix(name, "dlq-") {
			t.Errorf("letter has the header %s: %q", name, values)
		}
	}
}

func TestControl_headers_do_not_act_again(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	broken := new(atomic.Bool)
	s.start(config(), poisoned(&runs, broken), nil)
	d := draft("bad")
	e, err := s.bus.Seal(d)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.bus.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	control := map[string]string{
		"Nats-Expected-Last-Subject-Sequence": "0", "Nats-TTL": "1h", "Nats-Msg-Id": "z",
	}
	for name, value := range control {
		m.Header[name] = []string{value}
	}
	if _, err := s.bus.JetStream().PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	l := s.letter()
	for name, value := range control {
		if got := l.Headers["dlq-original-"+name]; len(got) != 1 || got[0] != value {
			t.Errorf("letter keeps %s as %q, want %q under another name", name, got, value)
		}
		if got, ok := l.Headers[name]; ok {
			t.Errorf("letter has the control header %s: %q", name, got)
		}
	}
	broken.Store(false)
	s.replayAll()
	s.settled("payment")
	if n := runs.of("bad"); n != 4 {
		t.Errorf("the handler ran %d times, want 3 and the replay", n)
	}
	redriven := s.messages(s.bus.Names().EventsStream(), s.bus.Names().RedriveFilter("payment"))
	if len(redriven) != 1 {
		t.Fatalf("%d redrives stored, want 1", len(redriven))
	}
	for name := range control {
		if name != nats.MsgIdHdr && redriven[0].Header.Get(name) != "" {
			t.Errorf("the redrive has the control header %s", name)
		}
	}
	if id := redriven[0].Header.Get(nats.MsgIdHdr); id == "z" || id == string(event.EventKeyOf(e)) {
		t.Errorf("the redrive has the message id %q of the original", id)
	}
}

func TestReplay_has_fresh_attempts_and_keeps_its_story(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	got := make(chan event.Event, 16)
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		got <- e
		if n := runs.add(e.ID()); n < 6 { // all 3 attempts, then two more
			return consumer.Step{}, fmt.Errorf("failure %d: %w", n, errFlaky)
		}
		return consumer.Step{}, nil
	}), nil)
	d := draft("o-1")
	d.Extensions = map[string]string{event.ExtTraceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	e := s.publish(d)[0]
	s.letter()
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return runs.of("o-1") == 6 })
	s.settled("payment")
	if n := len(s.letters()); n != 0 {
		t.Errorf("%d dead letters left, want none", n)
	}
	close(got)
	for seen := range got {
		if seen.String() != e.String() {
			t.Errorf("the handler saw\n%s, want\n%s", seen, e)
		}
	}
	m := s.mark("payment", event.EventKeyOf(e))
	if m.State != "done" || m.Replay != 1 || m.Failures != 2 || m.First == nil || m.First.Error != "failure 1: "+errFlaky.Error() {
		t.Errorf("mark = %+v, want done by replay 1 after 2 failures, with the first failure of all", m)
	}
	// Once more is known to be too much.
	if sum := s.replayAll(); sum.Selected != 0 {
		t.Errorf("a second replay selects %d", sum.Selected)
	}
}

func TestReplayThatFailsAgainIsOneLetterWithItsHistory(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	s.start(config(), poisoned(&runs, new(atomic.Bool)), nil)
	e := s.publish(draft("bad"))[0]
	first := s.letter()
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return runs.of("bad") == 6 && len(s.letters()) == 1 })
	s.settled("payment")
	l := s.letter()
	if l.Count != 2 || l.Failures != 3 || len(l.Attempts) != 6 {
		t.Errorf("letter tells %d parkings, %d failures and %d attempts; want 2, 3 and 6", l.Count, l.Failures, len(l.Attempts))
	}
	if l.Origin != first.Origin || !l.FirstFailure.Equal(first.FirstFailure) {
		t.Errorf("letter is from %+v, first failed %v; want %+v and %v", l.Origin, l.FirstFailure, first.Origin, first.FirstFailure)
	}
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "parked" || m.Replay != 1 {
		t.Errorf("mark is %s by replay %d, want parked by 1", m.State, m.Replay)
	}
}

func TestReplay_reaches_only_the_consumer_that_failed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var payment, audit, late tally
	broken := new(atomic.Bool)
	s.start(config(), poisoned(&payment, broken), nil)
	cfg := config()
	cfg.Name = "audit"
	s.start(cfg, counting(&audit), nil)
	events := s.publish(draft("bad"))
	s.letter()
	s.settled("audit")
	broken.Store(false)
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return payment.of("bad") == 4 })
	s.settled("payment")
	s.settled("audit")
	audit.wantOnce(t, events)
	cfg.Name = "late"
	s.start(cfg, counting(&late), nil)
	s.settled("late")
	late.wantOnce(t, events)
}

func TestReplaying_all_ends_although_half_comes_back(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var broken atomic.Bool
	broken.Store(true)
	p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if broken.Load() || strings.HasPrefix(e.ID(), "bad") {
			return consumer.Step{}, consumer.Permanent(errFlaky)
		}
		return consumer.Step{}, nil
	}), nil)
	for i := range 10 {
		s.publish(draft(fmt.Sprint("bad-", i)), draft(fmt.Sprint("good-", i)))
	}
	s.settled("payment")
	broken.Store(false)
	if sum := s.replayAll(); sum.Counts[dlq.Replayed] != 20 {
		t.Errorf("replay = %v, want 20 replayed", sum.Counts)
	}
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 10 && p.Stats().Parked == 30 })
	s.settled("payment")
	letters := s.letters()
	if len(letters) != 10 {
		t.Errorf("%d letters, want the 10 that fail", len(letters))
	}
	for _, l := range letters {
		if !strings.HasPrefix(l.EventID, "bad") || l.Count != 2 {
			t.Errorf("%s is parked %d times, want twice a bad one", l.EventID, l.Count)
		}
	}
}

func TestDying_between_letter_and_mark_three_times_leaves_one_letter(t *testing.T) {
	t.Parallel()
	g := newGap(t, true)
	g.cfg.Retry.MaxAttempts, g.cfg.MaxCrashes = 1, 5
	for range 3 {
		dead := make(chan struct{})
		g.start(g.cfg, g.handler(func() {}), func(p *process, l dedup.Ledger) dedup.Ledger {
			return &tapped{Ledger: l, onPark: func(letter *nats.Msg, _ func() error) error {
				defer close(dead)
				return g.dieAfterSending(p, letter)
			}}
		})
		<-dead
	}
	g.finish()
	g.wantParked(4, 1, 3)
}

func TestPoison_does_not_block_what_is_behind_it(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Concurrency = 1
	cfg.Retry.BaseDelay, cfg.Retry.MaxDelay = 2*time.Second, 2*time.Second
	var runs tally
	p := s.prepare(cfg, poisoned(&runs, new(atomic.Bool)), nil)
	s.publish(draft("bad"))
	events := s.publishN(100)
	p.run()
	defer func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 100 })
	if p.Stats().Parked != 0 {
		t.Error("the poison was parked before the others were handled")
	}
	s.letter()
	s.settled("payment")
	for _, e := range events {
		if n := runs.of(e.ID()); n != 1 {
			t.Errorf("%s ran %d times, want once", e.ID(), n)
		}
	}
	if n := runs.of("bad"); n != 3 {
		t.Errorf("the poison ran %d times, want 3", n)
	}
}

func TestData_is_the_same_to_the_last_bit_everywhere(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	data := `{"amount":9007199254740993,"z":1.0,"a":1}`
	seen := make(chan event.Event, 2)
	var runs tally
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		seen <- e
		if runs.add(e.ID()) == 1 {
			return consumer.Step{}, consumer.Permanent(errFlaky)
		}
		return consumer.Step{}, nil
	}), nil)
	d := draft("o-1")
	d.Data = []byte(data)
	s.publish(d)
	if l := s.letter(); string(l.Data) != data {
		t.Errorf("letter has %s", l.Data)
	}
	s.replayAll()
	for range 2 {
		if e := <-seen; string(e.Data()) != data {
			t.Errorf("the handler saw %s", e.Data())
		}
	}
}
