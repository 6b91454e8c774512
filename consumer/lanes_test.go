package consumer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// laneClock is where the tests of lanes begin; only differences matter.
var laneClock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func onLane(key string, sequence uint64) *delivery {
	return &delivery{lane: key, sequence: sequence}
}

func wantRun(t *testing.T, l *lanes, d *delivery, now time.Time) {
	t.Helper()
	if run, back := l.enter(d, now); !run || back != 0 {
		t.Fatalf("enter %d = run %v, back %v; want it to run", d.sequence, run, back)
	}
}

func wantQueued(t *testing.T, l *lanes, d *delivery, now time.Time) {
	t.Helper()
	if run, back := l.enter(d, now); run || back != 0 {
		t.Fatalf("enter %d = run %v, back %v; want it queued", d.sequence, run, back)
	}
}

func wantBack(t *testing.T, l *lanes, d *delivery, now time.Time, least, most time.Duration) {
	t.Helper()
	if run, back := l.enter(d, now); run || back < least || back > most {
		t.Fatalf("enter %d = run %v, back %v; want it given back for %v to %v", d.sequence, run, back, least, most)
	}
}

func wantNext(t *testing.T, l *lanes, d *delivery, now time.Time, want *delivery) {
	t.Helper()
	if next, back := l.leave(d, 0, now); next != want || len(back) > 0 {
		t.Fatalf("leave %d = next %v, %d given back; want %v next", d.sequence, next, len(back), want)
	}
}

func TestLanesRunOneKeyInStreamOrder(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d1, d2, d3, d4 := onLane("a", 1), onLane("a", 2), onLane("a", 3), onLane("a", 4)
	wantRun(t, l, d1, laneClock)
	wantQueued(t, l, d4, laneClock)
	wantQueued(t, l, d2, laneClock)
	wantQueued(t, l, d3, laneClock)
	wantRun(t, l, onLane("b", 5), laneClock)
	wantNext(t, l, d1, laneClock, d2)
	wantNext(t, l, d2, laneClock, d3)
	wantNext(t, l, d3, laneClock, d4)
	wantNext(t, l, d4, laneClock, nil)
	if _, ok := l.byKey["a"]; ok {
		t.Error("the idle lane is kept")
	}
}

func TestLanesRetryHoldsItsKey(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d1, d2, d3 := onLane("a", 1), onLane("a", 2), onLane("a", 3)
	wantRun(t, l, d1, laneClock)
	wantQueued(t, l, d2, laneClock)
	wantQueued(t, l, d3, laneClock)
	next, back := l.leave(d1, time.Second, laneClock)
	if next != nil || len(back) != 2 || back[0].delivery != d2 || back[1].delivery != d3 {
		t.Fatalf("leave = next %v, back %v; want the followers back", next, back)
	}
	for _, h := range back {
		if h.delay < time.Second || h.delay > time.Second+2*holdStep {
			t.Errorf("%d is given back for %v, want just over the retry's 1s", h.sequence, h.delay)
		}
	}
	wantRun(t, l, onLane("b", 4), laneClock)
	wantBack(t, l, onLane("a", 5), laneClock.Add(400*time.Millisecond), 600*time.Millisecond, 600*time.Millisecond+2*holdStep)

	late := laneClock.Add(time.Second + 500*time.Millisecond) // due, not here yet
	wantBack(t, l, d2, late, holdStep, 2*holdStep)
	wantRun(t, l, d1, late)
	wantBack(t, l, d3, late, 1, 2*holdStep) // d2 is away and comes first
	wantNext(t, l, d1, late, nil)
	wantRun(t, l, d2, late)
	wantQueued(t, l, d3, late)
	wantNext(t, l, d2, late, d3)
}

func TestLanesFollowersDoNotAddUpTheirDelays(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d := onLane("a", 1)
	wantRun(t, l, d, laneClock)
	for i := range uint64(1000) {
		wantQueued(t, l, onLane("a", 2+i), laneClock)
	}
	_, back := l.leave(d, time.Second, laneClock)
	if len(back) != 1000 || back[999].delay > time.Second+2*holdStep {
		t.Errorf("%d followers given back, the last for %v, want 1,000 for about the retry's 1s", len(back), back[len(back)-1].delay)
	}
}

func TestLanesGiveUpOnARetryThatWentElsewhere(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d := onLane("a", 1)
	wantRun(t, l, d, laneClock)
	l.leave(d, time.Second, laneClock)
	if n := l.waits(); n != 1 {
		t.Errorf("waits = %d, want 1", n)
	}
	gone := laneClock.Add(time.Second + holdSlack + 1)
	wantRun(t, l, onLane("a", 2), gone)
	l.leave(onLane("a", 2), 0, gone)
	if n := l.waits(); n != 0 {
		t.Errorf("waits = %d after the slack, want 0", n)
	}
	if len(l.byKey) != 0 {
		t.Error("the lane is kept although nothing is in it")
	}
}

func TestLanesSweepForgetsWhatNeverCameBack(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	for i := range uint64(100) {
		d := onLane(fmt.Sprint(i), i)
		wantRun(t, l, d, laneClock)
		l.leave(d, time.Second, laneClock)
	}
	l.sweep(laneClock.Add(time.Second))
	if n := len(l.byKey); n != 100 {
		t.Errorf("%d lanes at the due time, want 100", n)
	}
	l.sweep(laneClock.Add(time.Second + holdSlack + 1))
	if n := len(l.byKey); n != 0 {
		t.Errorf("%d lanes after the slack, want 0", n)
	}
}

func TestLanesRedeliveryOfTheRunningEventWaitsItsRetry(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d, copied := onLane("a", 1), onLane("a", 1)
	wantRun(t, l, d, laneClock)
	wantQueued(t, l, copied, laneClock) // its ack wait ran out on the way
	next, back := l.leave(d, time.Second, laneClock)
	if next != nil || len(back) != 1 || back[0].delay < time.Second {
		t.Errorf("leave = next %v, back %v; want the copy back with the retry's delay", next, back)
	}
}

// Each is given back for as long as what it waits for takes: a copy of an event
// for its own retry, not for that of a later event which its follower waits for.
func TestLanesGiveEachItsOwnDelay(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d1, copied, d2, d3 := onLane("a", 1), onLane("a", 1), onLane("a", 2), onLane("a", 3)
	wantRun(t, l, d2, laneClock)
	wantQueued(t, l, d1, laneClock)
	wantQueued(t, l, d3, laneClock)
	wantNextRetry(t, l, d2, 3*time.Second, d1)
	wantQueued(t, l, copied, laneClock)
	_, back := l.leave(d1, time.Millisecond, laneClock)
	if len(back) != 2 || back[0].delay > time.Second || back[1].delay < 3*time.Second {
		t.Errorf("given back %v, want the copy soon and the third event after the second one's retry", back)
	}
}

func wantNextRetry(t *testing.T, l *lanes, d *delivery, retry time.Duration, want *delivery) {
	t.Helper()
	if next, back := l.leave(d, retry, laneClock); next != want || len(back) > 0 {
		t.Fatalf("leave = next %v, back %v; want %v next", next, back, want)
	}
}

func TestLanesStuckKeyIsLeftToOthers(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	d, follower := onLane("a", 1), onLane("a", 2)
	wantRun(t, l, d, laneClock)
	wantQueued(t, l, follower, laneClock)
	if back := l.markStuck(d, laneClock); !slices.Equal(back, []*delivery{follower}) {
		t.Fatalf("markStuck gives back %v, want the follower", back)
	}
	if back := l.markStuck(d, laneClock); len(back) != 0 {
		t.Errorf("markStuck again gives back %v, want nothing", back)
	}
	wantBack(t, l, onLane("a", 1), laneClock, stuckRetry, stuckRetry)
	wantBack(t, l, follower, laneClock, 1, stuckRetry+2*holdStep)
	wantNext(t, l, d, laneClock, nil)
	wantBack(t, l, onLane("a", 3), laneClock, 1, stuckRetry+2*holdStep) // order holds
	wantRun(t, l, follower, laneClock.Add(stuckRetry))
	if back := l.markStuck(d, laneClock); back != nil {
		t.Error("a delivery that has left marks its lane as stuck")
	}
}

func TestLanesEmptyHandsOutTheQueues(t *testing.T) {
	t.Parallel()
	l := newLanes(1000)
	a, b := onLane("a", 1), onLane("b", 2)
	wantRun(t, l, a, laneClock)
	wantRun(t, l, b, laneClock)
	wantQueued(t, l, onLane("a", 3), laneClock)
	wantQueued(t, l, onLane("b", 4), laneClock)
	if got := l.empty(); len(got) != 2 {
		t.Errorf("empty = %d deliveries, want 2", len(got))
	}
	wantNext(t, l, a, laneClock, nil)
	wantNext(t, l, b, laneClock, nil)
}

// laneModel is a server and a process around lanes. It knows nothing of how
// lanes work: it delivers, redelivers, runs, fails and finishes messages as a
// server and a consumer might, and checks what is told to run.
type laneModel struct {
	lanes    *lanes
	now      time.Time
	messages []*modelMessage
	running  map[string]*delivery
}

type modelMessage struct {
	key      string
	sequence uint64
	done     bool
	inside   int       // deliveries running or queued here
	away     bool      // given back, comes again
	due      time.Time // of away
	seen     bool      // delivered at least once
}

func (m *laneModel) of(d *delivery) *modelMessage { return m.messages[d.sequence-1] }

// deliverable are messages the server may hand out now.
func (m *laneModel) deliverable() (ms []*modelMessage) {
	for _, msg := range m.messages {
		if !msg.done && msg.inside == 0 && !msg.due.After(m.now) {
			ms = append(ms, msg)
		}
	}
	return ms
}

func (m *laneModel) deliver(t *rapid.T, msg *modelMessage) {
	d := onLane(msg.key, msg.sequence)
	msg.away, msg.seen = false, true
	run, back := m.lanes.enter(d, m.now)
	switch {
	case run:
		msg.inside++
		m.start(t, d)
	case back > 0:
		m.giveBack(msg, back)
	default:
		msg.inside++
		if m.running[msg.key] == nil {
			t.Fatalf("%s/%d is queued although nothing of its key runs", msg.key, msg.sequence)
		}
	}
}

func (m *laneModel) giveBack(msg *modelMessage, delay time.Duration) {
	if msg.done {
		return
	}
	msg.away, msg.due = true, m.now.Add(delay)
}

// start checks the order at the moment an event runs.
func (m *laneModel) start(t *rapid.T, d *delivery) {
	if other := m.running[d.lane]; other != nil {
		t.Fatalf("%s/%d runs beside %d", d.lane, d.sequence, other.sequence)
	}
	m.running[d.lane] = d
	if m.of(d).done {
		return // a copy of what is done: the ledger says so
	}
	for _, earlier := range m.messages[:d.sequence-1] {
		if earlier.key != d.lane || earlier.done || !earlier.seen {
			continue
		}
		if earlier.inside > 0 {
			t.Fatalf("%s/%d overtakes %d, which is queued", d.lane, d.sequence, earlier.sequence)
		}
		if earlier.away && !m.now.After(earlier.due.Add(holdSlack)) {
			t.Fatalf("%s/%d overtakes %d, which is due at %v", d.lane, d.sequence, earlier.sequence, earlier.due.Sub(m.now))
		}
	}
}

func (m *laneModel) finish(t *rapid.T, d *delivery, retry time.Duration) {
	msg := m.of(d)
	delete(m.running, d.lane)
	msg.inside--
	if retry > 0 {
		m.giveBack(msg, retry)
	} else {
		msg.done = true
	}
	next, back := m.lanes.leave(d, retry, m.now)
	for _, f := range back {
		m.of(f.delivery).inside--
		if f.delay <= 0 {
			t.Fatalf("%s/%d is given back without a delay", f.lane, f.sequence)
		}
		m.giveBack(m.of(f.delivery), f.delay)
	}
	if next != nil {
		m.start(t, next)
	}
}

func (m *laneModel) run(t *rapid.T) *delivery {
	keys := make([]string, 0, len(m.running))
	for key := range m.running {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		t.Skip("nothing runs")
	}
	slices.Sort(keys)
	return m.running[rapid.SampledFrom(keys).Draw(t, "key")]
}

func TestLanesAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &laneModel{lanes: newLanes(1000), now: laneClock, running: map[string]*delivery{}}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
				m.messages = append(m.messages, &modelMessage{key: key, sequence: uint64(len(m.messages) + 1)})
			},
			"deliver": func(t *rapid.T) {
				ready := m.deliverable()
				if len(ready) == 0 {
					t.Skip("nothing to deliver")
				}
				m.deliver(t, rapid.SampledFrom(ready).Draw(t, "message"))
			},
			"redeliver what is here": func(t *rapid.T) {
				var here []*modelMessage
				for _, msg := range m.messages {
					if msg.inside > 0 && !msg.done {
						here = append(here, msg)
					}
				}
				if len(here) == 0 {
					t.Skip("nothing is here")
				}
				m.deliver(t, rapid.SampledFrom(here).Draw(t, "message"))
			},
			"succeed": func(t *rapid.T) { m.finish(t, m.run(t), 0) },
			"fail": func(t *rapid.T) {
				ms := rapid.IntRange(1, 3000).Draw(t, "retry ms")
				m.finish(t, m.run(t), time.Duration(ms)*time.Millisecond)
			},
			"stick": func(t *rapid.T) {
				d := m.run(t)
				for _, f := range m.lanes.markStuck(d, m.now) {
					m.of(f).inside--
					m.giveBack(m.of(f), stuckRetry)
				}
			},
			"wait": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
			},
			"sweep": func(*rapid.T) { m.lanes.sweep(m.now) },
		})
		m.settle(t)
	})
}

// settle checks that everything gets done and nothing stays behind.
func (m *laneModel) settle(t *rapid.T) {
	for range 100 + 100*len(m.messages) {
		for _, d := range m.running {
			m.finish(t, d, 0)
		}
		for _, msg := range m.deliverable() {
			m.deliver(t, msg)
		}
		m.now = m.now.Add(holdStep)
	}
	for _, msg := range m.messages {
		if !msg.done {
			t.Fatalf("%s/%d is stuck", msg.key, msg.sequence)
		}
	}
	m.now = m.now.Add(time.Minute)
	m.lanes.sweep(m.now)
	if n := len(m.lanes.byKey); n != 0 {
		t.Fatalf("%d lanes are kept", n)
	}
}

// What waits in this process is not gone, however late it is: a process that stood
// still must not let others of the key pass. With its partition it is.
func TestLanesWaitForWhatWaitsInThisProcess(t *testing.T) {
	t.Parallel()
	l, p := newLanes(1000), &partition{consumer: &Consumer{slots: newSlots(1)}, idle: make(chan struct{})}
	of := func(sequence uint64) *delivery {
		d := onLane("a", sequence)
		d.partition = p
		return d
	}
	first, later := of(1), laneClock.Add(time.Hour)
	wantRun(t, l, first, laneClock)
	if next, back := l.leave(first, time.Second, laneClock); next != nil || len(back) > 0 {
		t.Fatalf("next %v, %d given back", next, len(back))
	}
	wantBack(t, l, of(2), later, time.Millisecond, time.Second)
	l.sweep(later)
	wantRun(t, l, first, later)
	if _, back := l.leave(first, time.Second, later); len(back) > 0 {
		t.Fatalf("%d given back", len(back))
	}
	p.close()
	wantRun(t, l, of(3), later.Add(time.Hour))
}
