package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/state"
)

// The tests of this file let a process die, or its connection break, at each
// message that a step consists of; those of gap_fail_test.go at each message
// that follows from a failure.

// cutting runs the process that dies at a frame of its connection.
func (g *gap) cutting(r *consumer.Registry, wrap func(p *process, l dedup.Ledger) dedup.Ledger, sent, received wiretap.Hook) {
	g.tb.Helper()
	tap := tapOf(g.server, sent, received)
	doomed := *g.system
	doomed.server = tap
	p := doomed.start(g.cfg, r, wrap)
	<-tap.IsCut()
	g.die(p)
}

// tapOf lets the hooks judge what comes after a consumer's preparations.
func tapOf(server nats.InProcessConnProvider, sent, received wiretap.Hook) *wiretap.Tap {
	var pulled atomic.Bool
	since := func(h wiretap.Hook) wiretap.Hook {
		return func(frame []byte) wiretap.Verdict {
			if strings.Contains(wiretap.Subject(frame), ".CONSUMER.MSG.NEXT.") {
				pulled.Store(true)
			}
			if h == nil || !pulled.Load() {
				return wiretap.Pass
			}
			return h(frame)
		}
	}
	return wiretap.New(server, since(sent), since(received))
}

// stores matches the frames by which a step becomes durable, apart from claims.
func (g *gap) stores(frame []byte) bool {
	subject := wiretap.Subject(frame)
	own := strings.HasPrefix(subject, g.bus.Names().Root("")) || strings.HasPrefix(subject, "$KV.")
	return own && !holds(frame, `"state":"claimed"`)
}

// receipt matches answers of streams that have stored a message or a batch.
func receipt(frame []byte) bool { return holds(frame, "\r\n"+`{"stream":"`) }

func holds(frame []byte, text string) bool { return strings.Contains(string(frame), text) }

// acknowledges matches what ends a delivery; signs that its handler is at work,
// which come first on a slow machine, have the same subject.
func acknowledges(frame []byte) bool {
	return strings.HasPrefix(wiretap.Subject(frame), "$JS.ACK.") && holds(frame, "+ACK")
}

// whole is a gap whose step has all that a step can have.
type whole struct {
	*gap
	docs []event.Key // none with a ledger that keeps no state
}

const events = 3

func newWhole(t *testing.T, g *gap) *whole {
	t.Helper()
	w := &whole{gap: g}
	if _, ok := g.open(g.bus).(*dedup.Partitions); ok {
		w.docs = []event.Key{"a", "b"}
	}
	// What the step cancels.
	_, err := g.bus.JetStream().PublishMsg(t.Context(), &nats.Msg{
		Subject: w.reminder(),
		Header: nats.Header{
			jetstream.ScheduleHeader:       {event.ScheduleAt(time.Now().Add(time.Hour))},
			jetstream.ScheduleTargetHeader: {g.bus.Names().DueSubject(g.bus.Names().EventSubject(due.Type(), "o-1"))},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *whole) reminder() string {
	return w.bus.Names().TimerSubject(w.cfg.Name, "reminder", "o-1")
}

// size is how many messages the step consists of: a timer, documents, events, the mark
// or the page, and a cancellation, in this order.
func (w *whole) size() int { return len(w.docs) + events + 3 }

// registry has the handler, and what gives it the ledger of its process.
func (w *whole) registry() (*consumer.Registry, func(*process, dedup.Ledger) dedup.Ledger) {
	var counts *state.Store[int]
	r := handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		w.runs.add(e.ID())
		step := consumer.Step{
			Timers: []consumer.Timer{deadline("o-1", time.Hour)},
			Cancel: []consumer.TimerID{{Name: "reminder", Key: "o-1"}},
		}
		for i := range events {
			step.Events = append(step.Events, paid.New(event.Key(fmt.Sprint("p-", i)), orderData{}))
		}
		for _, key := range w.docs {
			d, err := counts.Get(ctx, key)
			if err != nil {
				return consumer.Step{}, err
			}
			step.State = append(step.State, d.Put(d.Value+1))
		}
		return step, nil
	})
	return r, func(p *process, l dedup.Ledger) dedup.Ledger {
		if pages, ok := l.(*dedup.Partitions); ok {
			var err error
			if counts, err = state.Of[int](p.bus, pages, w.cfg.Name); err != nil {
				w.tb.Fatal(err)
			}
		}
		return l
	}
}

// parts says how often each part of the step is there.
func (w *whole) parts() map[string]int {
	w.tb.Helper()
	parts := map[string]int{}
	for _, e := range w.stored(paid.Type()) {
		parts["event "+string(event.PartitionKey(e))]++
	}
	for _, key := range w.docs {
		counts, err := state.Of[int](w.bus, w.open(w.bus).(*dedup.Partitions), w.cfg.Name)
		if err != nil {
			w.tb.Fatal(err)
		}
		d, err := counts.Committed(w.tb.Context(), key)
		if err != nil {
			w.tb.Fatal(err)
		}
		parts["document "+string(key)] += d.Value
	}
	stream := w.bus.Names().TimersStream()
	parts["timer"] = len(w.waiting("o-1"))
	parts["cancellation"] = 1
	for _, m := range w.messages(stream, w.reminder()) {
		if m.Header.Get(jetstream.ScheduleHeader) != "" {
			parts["cancellation"] = 0
		}
	}
	return parts
}

// wantParts checks that each part of the step is there n times, apart from some.
func (w *whole) wantParts(n int, apart ...string) {
	w.tb.Helper()
	var parts map[string]int
	bustest.Eventually(w.tb, soon, func() error { // a cancellation comes after the step
		parts = w.parts()
		for part, got := range parts {
			if got < n && !slices.Contains(apart, part) {
				return fmt.Errorf("%s is there %d times, want %d", part, got, n)
			}
		}
		return nil
	})
	if want := w.size() - 1; n > 0 && len(parts) != want {
		w.tb.Errorf("%d parts of the step are there, want %d: %v", len(parts), want, parts)
	}
	for part, got := range parts {
		if got != n && !slices.Contains(apart, part) {
			w.tb.Errorf("%s is there %d times, want %d", part, got, n)
		}
	}
}

// TestGap_KV_completing lets a process die before each message of a step's completion,
// and before the mark's answer. In the end everything is there, once; what was to be
// cancelled after the step may fire nevertheless.
func TestGap_KV_completing(t *testing.T) {
	t.Parallel()
	for n := range newWhole(t, newGap(t, false)).size() + 1 {
		t.Run(fmt.Sprint("message ", n+1), func(t *testing.T) {
			t.Parallel()
			w := newWhole(t, newGap(t, false))
			sent, received, stored := w.at(n, wiretap.Cut)
			r, wrap := w.registry()
			w.cutting(r, wrap, sent, received)
			if got := w.parts()["timer"]; got != min(n, 1) {
				t.Errorf("%d timers are set after the crash", got)
			}
			r, wrap = w.registry()
			p := w.start(w.cfg, r, wrap)
			w.settled(w.cfg.Name)
			w.wantParts(1, w.left(stored)...)
			if runs, want := w.runs.of("o-1"), 2-stored; runs != want {
				t.Errorf("the handler ran %d times, want %d", runs, want)
			}
			// An acknowledgement may be late on a busy machine: then the event comes once more.
			if st := p.Stats(); st.Handled != uint64(1-stored) || st.Duplicate < uint64(stored) || st.Parked+st.Retried > 0 {
				t.Errorf("stats %+v after %d steps were stored", st, stored)
			}
		})
	}
}

// left is what a step that was stored may lack for ever.
func (w *whole) left(stored int) []string {
	if stored == 0 {
		return nil
	}
	return []string{"cancellation"}
}

// at returns what lets something happen at the n-th message of the step, from
// 0; after the last one that is the mark's answer. stored says whether the step is then.
func (w *whole) at(n int, v wiretap.Verdict) (sent, received wiretap.Hook, stored int) {
	switch {
	case n < w.size()-1:
		return wiretap.Nth(n+1, v, w.stores), nil, 0
	case n == w.size()-1:
		return wiretap.Nth(n+1, v, w.stores), nil, 1
	}
	var marked atomic.Bool // before it all else is answered
	sent = func(frame []byte) wiretap.Verdict {
		if w.stores(frame) && holds(frame, `"state":"done"`) {
			marked.Store(true)
		}
		return wiretap.Pass
	}
	return sent, wiretap.Nth(1, v, func(frame []byte) bool { return marked.Load() && receipt(frame) }), 1
}

// TestOutage_KV_completing is the same for a process that lives: its connection
// breaks, and it goes on by itself.
func TestOutage_KV_completing(t *testing.T) {
	t.Parallel()
	for n := range newWhole(t, newGap(t, false)).size() + 1 {
		t.Run(fmt.Sprint("message ", n+1), func(t *testing.T) {
			t.Parallel()
			w := newWhole(t, newGap(t, false))
			sent, received, stored := w.at(n, wiretap.Break)
			r, wrap := w.registry()
			system := *w.system
			system.server = tapOf(w.server, sent, received)
			system.start(w.cfg, r, wrap)
			bustest.Eventually(t, soon, func() bool { return w.mark(w.cfg.Name, event.EventKeyOf(w.event)).State == "done" })
			w.settled(w.cfg.Name)
			w.wantParts(1, w.left(stored)...)
			if m := w.mark(w.cfg.Name, event.EventKeyOf(w.event)); m.Crashes+m.Failures > 0 {
				t.Errorf("%d crashes and %d failures, want none", m.Crashes, m.Failures)
			}
		})
	}
}
