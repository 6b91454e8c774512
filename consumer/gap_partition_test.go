package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// The tests of this file prove the rows of DESIGN.md's crash-gap table that are about
// the ledger by partition: a process dies at a message, and the next owner finishes.

// ofStep matches the frames by which an owner makes a step durable, and no fence.
func (g *gap) ofStep(frame []byte) bool {
	return strings.HasPrefix(wiretap.Subject(frame), g.bus.Names().Root("")) && !fences(frame) &&
		!strings.HasSuffix(wiretap.Subject(frame), ".durable")
}

func fences(frame []byte) bool { return holds(frame, "Farandole-Page: fence") }

// ofPage matches the pages on the partition of the event.
func (g *gap) ofPage(kind string) func(frame []byte) bool {
	p := event.PartitionOf(event.PartitionKey(g.event), event.DefaultPartitions)
	subject := g.bus.Names().Root(fmt.Sprintf("ledger.%s.%d.page", g.cfg.Name, p))
	return func(frame []byte) bool {
		return wiretap.Subject(frame) == subject && holds(frame, "Farandole-Page: "+kind+"\r\n")
	}
}

// answerTo gives v to the first answer of a stream after a frame that matches.
func answerTo(v wiretap.Verdict, match func(frame []byte) bool) (sent, received wiretap.Hook) {
	var asked atomic.Bool
	return func(frame []byte) wiretap.Verdict {
		if match(frame) {
			asked.Store(true)
		}
		return wiretap.Pass
	}, wiretap.Nth(1, v, func(frame []byte) bool { return asked.Load() && receipt(frame) })
}

// atStep returns what lets something happen at the n-th message of a whole step, from
// 0: a timer, documents, events, the page, a cancellation; after the last one, at the
// page's answer.
func (w *whole) atStep(n int, v wiretap.Verdict) (sent, received wiretap.Hook, stored int) {
	switch page := 1 + len(w.docs) + events; {
	case n < w.size():
		if n > page {
			stored = 1
		}
		return wiretap.Nth(n+1, v, w.ofStep), nil, stored
	default:
		sent, received = answerTo(v, w.ofPage("page"))
		return sent, received, 1
	}
}

func newPartitionWhole(t *testing.T) *whole {
	t.Helper()
	return newWhole(t, newGapOf(t, partitionKind, false))
}

// TestGap_partition_completing lets an owner die before each message of a step, and
// before its page's answer: all of it is there then or nothing, apart from the timer.
func TestGap_partition_completing(t *testing.T) {
	t.Parallel()
	for n := range newPartitionWhole(t).size() + 1 {
		t.Run(fmt.Sprint("message ", n+1), func(t *testing.T) {
			t.Parallel()
			w := newPartitionWhole(t)
			sent, received, stored := w.atStep(n, wiretap.Cut)
			r, wrap := w.registry()
			w.cutting(r, wrap, sent, received)
			if got := w.parts()["timer"]; got != min(n, 1) {
				t.Errorf("%d timers are set after the crash", got)
			}
			w.wantParts(stored, "timer", "cancellation")
			r, wrap = w.registry()
			w.start(w.cfg, r, wrap)
			bustest.Eventually(t, soon, func() bool { return w.mark(w.cfg.Name, event.EventKeyOf(w.event)).State == "done" })
			w.passed()
			w.wantParts(1, w.left(stored)...)
			if runs, want := w.runs.of("o-1"), 2-stored; runs != want {
				t.Errorf("the handler ran %d times, want %d", runs, want)
			}
			if m := w.mark(w.cfg.Name, event.EventKeyOf(w.event)); m.Crashes+m.Failures > 0 {
				t.Errorf("%d crashes and %d failures, want none", m.Crashes, m.Failures)
			}
		})
	}
}

// TestOutage_partition_completing is the same for a process that lives: its connection
// breaks, and it goes on by itself. No crash is counted, even if events say that they start.
func TestOutage_partition_completing(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]kind{"without claims": partitionKind, "with claims": claimingKind} {
		for n := range newPartitionWhole(t).size() + 1 {
			t.Run(fmt.Sprint(name, ", message ", n+1), func(t *testing.T) {
				t.Parallel()
				w := newWhole(t, newGapOf(t, kind, false))
				sent, received, stored := w.atStep(n, wiretap.Break)
				r, wrap := w.registry()
				system := *w.system
				system.server = tapOf(w.server, sent, received)
				system.start(w.cfg, r, wrap)
				bustest.Eventually(t, soon, func() bool { return w.mark(w.cfg.Name, event.EventKeyOf(w.event)).State == "done" })
				w.passed()
				w.wantParts(1, w.left(stored)...)
				if m := w.mark(w.cfg.Name, event.EventKeyOf(w.event)); m.Crashes+m.Failures > 0 {
					t.Errorf("%d crashes and %d failures, want none", m.Crashes, m.Failures)
				}
			})
		}
	}
}

// TestGap_partition_taking lets an owner die between its fence, the delivery of the
// event, and its first page.
func TestGap_partition_taking(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(g *gap) (sent, received wiretap.Hook){
		"before the fence": func(g *gap) (sent, received wiretap.Hook) {
			return wiretap.Nth(1, wiretap.Cut, g.ofPage("fence")), nil
		},
		"before the fence's answer": func(g *gap) (sent, received wiretap.Hook) { return answerTo(wiretap.Cut, g.ofPage("fence")) },
		"before the delivery": func(g *gap) (sent, received wiretap.Hook) {
			return nil, wiretap.Nth(1, wiretap.Cut, func(frame []byte) bool {
				return wiretap.Subject(frame) == g.storedOn(placed.Type(), event.PartitionKey(g.event))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGapOf(t, partitionKind, false)
			sent, received := at(g)
			g.cutting(g.handler(func() {}), nil, sent, received)
			g.finish()
			g.wantDone(1, 0)
		})
	}
}

// passed waits until the floor of the event's partition has passed the event.
func (g *gap) passed() {
	g.tb.Helper()
	p := event.PartitionOf(event.PartitionKey(g.event), event.DefaultPartitions)
	bustest.Eventually(g.tb, soon, func() error {
		heads, err := g.open(g.bus).Partitions().Heads(g.tb.Context(), g.cfg.Name)
		if err == nil && heads[p].Floor == 0 {
			err = fmt.Errorf("head %+v", heads[p])
		}
		return err
	})
}

// ended waits until the event has come to its end, and its partition has passed it.
func (g *gap) ended() {
	g.tb.Helper()
	bustest.Eventually(g.tb, soon, func() error {
		if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.State != "done" && m.State != "parked" {
			return fmt.Errorf("the event is %q", m.State)
		}
		return nil
	})
	g.passed()
}

// TestGap_partition_starting lets a careful owner die when it has said that the event
// starts, before the handler runs: that is one crash of the event.
func TestGap_partition_starting(t *testing.T) {
	t.Parallel()
	g := newGapOf(t, partitionKind, false)
	g.dieHandling()
	sent, received := answerTo(wiretap.Cut, func(frame []byte) bool { return holds(frame, "Farandole-Starts: 1") })
	g.cutting(g.handler(func() {}), nil, sent, received)
	g.finish()
	g.wantDone(2, 1)
}

// TestGap_partition_handing_over lets an owner die when it says farewell: the next one is
// careful, and nothing that has ended runs again.
func TestGap_partition_handing_over(t *testing.T) {
	t.Parallel()
	g := newGapOf(t, partitionKind, false)
	tap := wiretap.New(g.server, wiretap.Nth(1, wiretap.Cut, g.ofPage("farewell")), nil)
	doomed := *g.system
	doomed.server = tap
	p := doomed.start(g.cfg, g.handler(func() {}), nil)
	g.passed()
	p.cancel()
	<-tap.IsCut()
	p.crash()
	second := g.publish(draft("o-2"))[0]
	g.finish()
	bustest.Eventually(t, soon, func() bool { return g.mark(g.cfg.Name, event.EventKeyOf(second)).State == "done" })
	g.passed()
	for _, id := range []string{"o-1", "o-2"} {
		if n := g.runs.of(id); n != 1 {
			t.Errorf("%s ran %d times, want once", id, n)
		}
	}
	if m := g.mark(g.cfg.Name, event.EventKeyOf(second)); m.Crashes != 0 {
		t.Errorf("%d crashes, want none", m.Crashes)
	}
}

// TestGap_partition_parking lets an owner die before each message of parking. In the end
// there is one letter, and the event is parked.
func TestGap_partition_parking(t *testing.T) {
	t.Parallel()
	letter := func(g *gap) func(frame []byte) bool {
		return func(frame []byte) bool {
			return strings.HasPrefix(wiretap.Subject(frame), g.bus.Names().Root("dlq."))
		}
	}
	record := func(frame []byte) bool { return holds(frame, `"state":"parked"`) }
	for name, point := range map[string]struct {
		at      func(g *gap) (sent, received wiretap.Hook)
		letters int
		stored  bool
	}{
		"before it is known to own the partition": {at: func(g *gap) (sent, received wiretap.Hook) {
			return wiretap.Nth(1, wiretap.Cut, g.ofPage("page")), nil
		}},
		"before the letter":          {at: func(g *gap) (sent, received wiretap.Hook) { return wiretap.Nth(1, wiretap.Cut, letter(g)), nil }},
		"before the letter's answer": {at: func(g *gap) (sent, received wiretap.Hook) { return answerTo(wiretap.Cut, letter(g)) }, letters: 1},
		"before the record":          {at: func(*gap) (sent, received wiretap.Hook) { return wiretap.Nth(1, wiretap.Cut, record), nil }, letters: 1},
		"between record and page": {at: func(g *gap) (sent, received wiretap.Hook) {
			return wiretap.Nth(2, wiretap.Cut, g.ofPage("page")), nil
		}, letters: 1},
		"before the page's answer": {at: func(*gap) (sent, received wiretap.Hook) { return answerTo(wiretap.Cut, record) }, letters: 1, stored: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGapOf(t, partitionKind, true)
			g.cfg.Retry.MaxAttempts = 1
			sent, received := point.at(g)
			g.cutting(g.handler(func() {}), nil, sent, received)
			if n := len(g.letters()); n != point.letters {
				t.Errorf("%d letters stored before the crash, want %d", n, point.letters)
			}
			g.finish()
			runs := 2
			if point.stored {
				runs = 1
			}
			g.wantParked(runs, 1, 0)
		})
	}
}

// TestGap_partition_letter_stored_then_succeeds dies between letter and record, and the
// rerun succeeds: the letter of the lost failure is left, and a replay clears it away.
func TestGap_partition_letter_stored_then_succeeds(t *testing.T) {
	t.Parallel()
	g := newGapOf(t, partitionKind, true)
	g.cfg.Retry.MaxAttempts = 1
	record := wiretap.Nth(1, wiretap.Cut, func(frame []byte) bool { return holds(frame, `"state":"parked"`) })
	g.cutting(g.handler(func() {}), nil, record, nil)
	g.fails = false
	g.finish()
	if sum := g.replayAll(); sum.Counts[dlq.AlreadyHandled] != 1 {
		t.Errorf("replay = %v, want the event known to be handled", sum.Counts)
	}
	g.settled(g.cfg.Name)
	g.wantDone(2, 0)
}

// TestGap_partition_deferring lets an owner die before each message of a long retry.
func TestGap_partition_deferring(t *testing.T) {
	t.Parallel()
	record := func(frame []byte) bool { return holds(frame, `"state":"waiting"`) }
	for name, point := range map[string]struct {
		at                func(g *gap) (sent, received wiretap.Hook)
		waiting, failures int
	}{
		"before the timer": {at: func(*gap) (sent, received wiretap.Hook) {
			return wiretap.Nth(1, wiretap.Cut, func(frame []byte) bool { return holds(frame, ".timer.payment.retry.") }), nil
		}},
		"before the record":        {at: func(*gap) (sent, received wiretap.Hook) { return wiretap.Nth(1, wiretap.Cut, record), nil }, waiting: 1},
		"before the page":          {at: func(g *gap) (sent, received wiretap.Hook) { return wiretap.Nth(1, wiretap.Cut, g.ofPage("page")), nil }, waiting: 1},
		"before the page's answer": {at: func(*gap) (sent, received wiretap.Hook) { return answerTo(wiretap.Cut, record) }, waiting: 1, failures: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGapOf(t, partitionKind, false)
			g.cfg.Retry.DeferAfter = time.Second
			r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				if g.runs.add(e.ID()) < 3 {
					return consumer.Step{}, consumer.RetryAfter(errFlaky, 1500*time.Millisecond)
				}
				return pay(e), nil
			})
			sent, received := point.at(g)
			g.cutting(r, nil, sent, received)
			if n := g.deferrals(); n != point.waiting {
				t.Errorf("%d retries were put off before the crash, want %d", n, point.waiting)
			}
			if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.Failures != point.failures {
				t.Errorf("%d failures recorded after the crash, want %d", m.Failures, point.failures)
			}
			g.start(g.cfg, r, nil)
			g.wantDeferredDone(0)
		})
	}
}

// TestPartitions_crash_loop lets one event kill each owner that runs it, with innocent
// events beside it at first. Of the first crash nobody knows which event it was.
func TestPartitions_crash_loop(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	cfg := config()
	var runs tally
	doomed := func(company int32) {
		p := new(*process)
		var beside atomic.Int32
		crowded, dead := make(chan struct{}), make(chan struct{})
		if company == 0 {
			close(crowded)
		}
		*p = s.prepare(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			switch {
			case e.ID() == "killer":
				<-crowded
				(*p).crash()
				close(dead)
				return consumer.Step{}, errCrashed
			case company == 0:
				return consumer.Step{}, nil
			case beside.Add(1) == company:
				close(crowded)
			}
			<-dead
			return consumer.Step{}, errCrashed
		}), nil)
		(*p).run()
		t.Cleanup(func() {
			if err := (*p).stop(); err != nil {
				t.Error(err)
			}
		})
		<-dead
	}
	innocent := []event.Draft{draft("i-1"), draft("i-2"), draft("i-3"), draft("i-4")}
	published := s.publish(append([]event.Draft{draft("killer")}, innocent...)...)
	doomed(int32(len(innocent)))
	for range cfg.MaxCrashes {
		doomed(0)
	}
	p := s.start(cfg, counting(&runs), nil)
	l := s.letter()
	if l.EventID != "killer" || l.Reason != event.ReasonCrashLoop || l.Crashes != cfg.MaxCrashes {
		t.Errorf("letter is of %s, %s after %d crashes; want the killer, %s after %d", l.EventID, l.Reason, l.Crashes, event.ReasonCrashLoop, cfg.MaxCrashes)
	}
	if n := runs.of("killer"); n != cfg.MaxCrashes+1 {
		t.Errorf("the killer ran %d times, want %d", n, cfg.MaxCrashes+1)
	}
	for _, e := range published[1:] {
		bustest.Eventually(t, soon, func() bool { return s.mark("payment", event.EventKeyOf(e)).State == "done" })
		if m := s.mark("payment", event.EventKeyOf(e)); m.Crashes > 1 || m.Failures != 0 {
			t.Errorf("%s has %d crashes and %d failures, want one at most and none", e.ID(), m.Crashes, m.Failures)
		}
	}
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
}
