package consumer_test

import (
	"context"
	"fmt"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// letters returns the dead letters as people see them.
func (s *system) letters() []dlq.Entry {
	s.tb.Helper()
	page, err := s.queue().List(s.tb.Context(), dlq.Filter{}, dlq.PageOptions{})
	if err != nil {
		s.tb.Fatal(err)
	}
	return page.Entries
}

// letter waits for the only dead letter.
func (s *system) letter() dlq.Record {
	s.tb.Helper()
	var entries []dlq.Entry
	bustest.Eventually(s.tb, soon, func() bool {
		entries = s.letters()
		return len(entries) > 0
	})
	if len(entries) != 1 {
		s.tb.Fatalf("%d dead letters, want 1", len(entries))
	}
	c, err := s.queue().Get(s.tb.Context(), entries[0].ID)
	if err != nil {
		s.tb.Fatal(err)
	}
	if c.Letter == nil {
		s.tb.Fatalf("%s has no letter: %s", c.ID, c.Verdict)
	}
	return *c.Letter
}

func (s *system) queue() *dlq.Queue {
	s.tb.Helper()
	return dlq.Open(s.bus, marks{s.open(s.bus)})
}

// replayAll replays all letters as soon as each event is marked as parked, which
// it is a moment after its letter is stored: until then the queue leaves it alone.
func (s *system) replayAll() (sum dlq.Summary) {
	s.tb.Helper()
	replay := func(o dlq.ReplayOptions) (err error) {
		sum, err = s.queue().Replay(s.tb.Context(), dlq.Selection{All: true}, o, nil)
		return err
	}
	bustest.Eventually(s.tb, soon, func() error {
		if err := replay(dlq.ReplayOptions{DryRun: true}); err != nil {
			return err
		}
		if n := sum.Counts[dlq.InProgress]; n > 0 {
			return fmt.Errorf("%d letters are still with their consumer", n)
		}
		return nil
	})
	if err := replay(dlq.ReplayOptions{}); err != nil {
		s.tb.Fatal(err)
	}
	return sum
}

// marks is the ledger as the queue asks it.
type marks struct{ ledger }

func (m marks) Mark(ctx context.Context, c event.Consumer, k event.EventKey) (dlq.Mark, bool, error) {
	mark, ok, err := m.ledger.Mark(ctx, c, k)
	return dlq.Mark(mark), ok, err
}

func (m marks) Workers(context.Context, event.Consumer) (int, error) { return 0, nil }
