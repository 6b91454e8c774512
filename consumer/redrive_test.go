package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// gone waits until there is no letter.
func (s *system) gone() {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() error {
		if n := len(s.letters()); n > 0 {
			return fmt.Errorf("%d letters are left", n)
		}
		return nil
	})
}

// TestLetter_stays_until_its_replay_is_handled replays while no process is there.
func TestLetter_stays_until_its_replay_is_handled(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		broken := new(atomic.Bool)
		p := s.start(config(), poisoned(&runs, broken), nil)
		s.publish(draft("bad-1"), draft("bad-2"))
		bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 2 })
		s.settled("payment")
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		s.replayAll()
		for _, l := range s.letters() {
			if l.Replay == nil || l.Replay.State != dlq.ReplayWaiting {
				t.Errorf("%s: replay %+v, want it waiting", l.EventID, l.Replay)
			}
		}
		broken.Store(false)
		s.start(config(), poisoned(&runs, new(atomic.Bool)), nil) // and both fail again
		bustest.Eventually(t, soon, func() error {
			for _, l := range s.letters() {
				if l.Replay != nil || l.Count != 2 {
					return fmt.Errorf("%s: replay %+v, parked %d times", l.EventID, l.Replay, l.Count)
				}
			}
			return nil
		})
		if n := len(s.letters()); n != 2 {
			t.Fatalf("%d letters, want 2", n)
		}
	})
}

func TestLetter_goes_when_its_replay_is_handled(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		broken := new(atomic.Bool)
		s.start(config(), poisoned(&runs, broken), nil)
		s.publish(draft("bad"))
		l := s.letter()
		s.settled("payment")
		broken.Store(false)
		s.replayAll()
		s.gone()
		sum, err := s.queue().Replay(t.Context(), dlq.Selection{IDs: []string{l.ID}}, dlq.ReplayOptions{}, nil)
		if err != nil || sum.Counts[dlq.AlreadyHandled] != 1 {
			t.Errorf("once more: %v, %v", sum.Counts, err)
		}
		if n := runs.of("bad"); n != 4 {
			t.Errorf("the handler ran %d times, want 3 and the replay", n)
		}
	})
}

func TestReplay_that_was_taken_back_does_not_run(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		broken := new(atomic.Bool)
		p := s.start(config(), poisoned(&runs, broken), nil)
		s.publish(draft("bad"))
		l := s.letter()
		s.settled("payment")
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		s.replayAll()
		one := dlq.Selection{IDs: []string{l.ID}}
		sum, err := s.queue().TakeBack(t.Context(), one, dlq.TakeBackOptions{}, nil)
		if err != nil || sum.Counts[dlq.TakenBack] != 1 {
			t.Fatalf("take back: %v, %v", sum.Counts, err)
		}
		fixed := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			return consumer.Step{}, nil
		})
		s.start(config(), fixed, nil)
		s.publish(draft("after"))
		bustest.Eventually(t, soon, func() bool { return runs.of("after") == 1 })
		s.settled("payment")
		if n := runs.of("bad"); n != 3 || len(s.letters()) != 1 || s.letters()[0].Replay != nil {
			t.Errorf("the handler ran %d times, letters %+v", n, s.letters())
		}
		s.replayAll()
		s.gone()
		if n := runs.of("bad"); n != 4 {
			t.Errorf("the handler ran %d times, want 3 and the second replay", n)
		}
	})
}

// A process that dies after the event has taken effect leaves the letter. The redelivery
// removes it, or, with the ledger by partition, which brings none, the next replay.
func TestGap_letter_of_a_handled_replay(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]kind{"KV": kvKind, "partitions": partitionKind, "SQLite": sqlKind(t, engines["SQLite"], false)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGapOf(t, kind, true)
			g.cfg.Retry.MaxAttempts = 1
			p := g.start(g.cfg, g.handler(func() {}), nil)
			g.letter()
			g.settled(g.cfg.Name)
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			g.replayAll()
			g.fails = false
			removal := func(frame []byte) bool {
				return strings.Contains(wiretap.Subject(frame), "STREAM.PURGE."+g.bus.Names().DLQStream())
			}
			g.cutting(g.handler(func() {}), nil, wiretap.Nth(1, wiretap.Cut, removal), nil)
			if l := g.letters(); len(l) != 1 || l[0].Replay == nil || l[0].Replay.State != dlq.ReplayHandled {
				t.Fatalf("after the crash: %+v", l)
			}
			g.finish()
			if name == "partitions" {
				if sum := g.replayAll(); sum.Counts[dlq.AlreadyHandled] != 1 {
					t.Errorf("replay: %v", sum.Counts)
				}
			}
			g.gone()
			if n := g.runs.of("o-1"); n != 2 {
				t.Errorf("the handler ran %d times, want 2", n)
			}
		})
	}
}
