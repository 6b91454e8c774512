package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// parkingPoint is where a process dies that parks an event.
type parkingPoint struct {
	sent, received wiretap.Hook
	stored         bool // the parked mark is
	letters        int
}

// parkingPoints are the messages of parking, and the claim that comes before.
func parkingPoints(g *gap) map[string]parkingPoint {
	letter := func(frame []byte) bool {
		return strings.HasPrefix(wiretap.Subject(frame), g.bus.Names().Root("dlq."))
	}
	mark := func(frame []byte) bool { return g.stores(frame) && holds(frame, `"state":"parked"`) }
	return map[string]parkingPoint{
		"before the letter":  {sent: wiretap.Nth(1, wiretap.Cut, letter)},
		"before the mark":    {sent: wiretap.Nth(1, wiretap.Cut, mark), letters: 1},
		"before the answer":  {received: wiretap.Nth(3, wiretap.Cut, receipt), stored: true, letters: 1}, // after those to claim and letter
		"letter's answer":    {received: wiretap.Nth(2, wiretap.Cut, receipt), letters: 1},
		"claim, not written": {sent: wiretap.Nth(1, wiretap.Cut, func(frame []byte) bool { return holds(frame, `"state":"claimed"`) })},
	}
}

// TestGap_KV_parking lets a process die before each message of parking. In the end
// there is one letter, and the event is parked.
func TestGap_KV_parking(t *testing.T) {
	t.Parallel()
	for name := range parkingPoints(newGap(t, true)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGap(t, true)
			g.cfg.Retry.MaxAttempts = 1
			point := parkingPoints(g)[name]
			g.cutting(g.handler(func() {}), nil, point.sent, point.received)
			if n := len(g.letters()); n != point.letters {
				t.Errorf("%d letters stored before the crash, want %d", n, point.letters)
			}
			g.finish()
			switch {
			case point.stored:
				g.wantParked(1, 1, 0)
			case name == "claim, not written":
				g.wantParked(1, 1, 0) // no handler has run
			default:
				g.wantParked(2, 1, 1)
			}
		})
	}
}

// TestGap_KV_letter_stored_then_succeeds dies between letter and mark, and the
// rerun succeeds: the letter of the lost failure is left, and a replay clears it away.
func TestGap_KV_letter_stored_then_succeeds(t *testing.T) {
	t.Parallel()
	g := newGap(t, true)
	g.cfg.Retry.MaxAttempts = 1
	g.cutting(g.handler(func() {}), nil, parkingPoints(g)["before the mark"].sent, nil)
	g.fails = false
	g.finish()
	if sum := g.replayAll(); sum.Counts[dlq.AlreadyHandled] != 1 {
		t.Errorf("replay = %v, want the event known to be handled", sum.Counts)
	}
	g.settled(g.cfg.Name)
	g.wantDone(2, 1)
}

// TestGap_KV_deferring lets a process die before each message of a long retry's
// deferral, before its answer, and before the acknowledgement of the event.
// In the end the event has taken effect once, and nothing waits any more.
func TestGap_KV_deferring(t *testing.T) {
	t.Parallel()
	mark := func(frame []byte) bool { return holds(frame, `"state":"waiting"`) }
	first := func(match func(frame []byte) bool) func() (sent, received wiretap.Hook) {
		return func() (sent, received wiretap.Hook) { return wiretap.Nth(1, wiretap.Cut, match), nil }
	}
	for name, point := range map[string]struct {
		at       func() (sent, received wiretap.Hook)
		waiting  int // timers stored
		failures int // marked
	}{
		"before the timer":  {at: first(func(frame []byte) bool { return holds(frame, ".timer.payment.retry.") })},
		"before the mark":   {at: first(mark), waiting: 1},
		"before the answer": {at: func() (sent, received wiretap.Hook) { return answerTo(wiretap.Cut, mark) }, waiting: 1, failures: 1},
		"before the ack":    {at: first(acknowledges), waiting: 1, failures: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGap(t, false)
			g.cfg.Retry.DeferAfter = time.Second
			r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				if g.runs.add(e.ID()) < 3 {
					return consumer.Step{}, consumer.RetryAfter(errFlaky, 1500*time.Millisecond)
				}
				return pay(e), nil
			})
			sent, received := point.at()
			g.cutting(r, nil, sent, received)
			if n := g.deferrals(); n != point.waiting {
				t.Errorf("%d retries were put off before the crash, want %d", n, point.waiting)
			}
			if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.Failures != point.failures {
				t.Errorf("%d failures marked after the crash, want %d", m.Failures, point.failures)
			}
			g.start(g.cfg, r, nil)
			g.wantDeferredDone(1 - point.failures)
		})
	}
}

// wantDeferredDone waits until the event is done and nothing will bring it back.
func (g *gap) wantDeferredDone(crashes int) {
	g.tb.Helper()
	bustest.Eventually(g.tb, soon, func() error {
		if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.State != "done" || len(g.deferred()) > 0 {
			return errors.New(m.State)
		}
		return nil
	})
	g.settled(g.cfg.Name)
	if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.Crashes != crashes {
		g.tb.Errorf("%d crashes marked, want %d", m.Crashes, crashes)
	}
	if n := len(g.stored(paid.Type())); n != 1 {
		g.tb.Errorf("%d events emitted, want 1", n)
	}
	if n := len(g.letters()); n != 0 {
		g.tb.Errorf("%d dead letters, want none", n)
	}
	if runs := g.runs.of("o-1"); !slices.Contains([]int{3, 4}, runs) {
		g.tb.Errorf("the handler ran %d times, want 3, or 4 where the first timer came before the redelivery", runs)
	}
}
