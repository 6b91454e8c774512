package deduptest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// RunModel compares ledgers with a model of a few lines under random sequences
// of calls by two workers on two events. If time passes, leases and retentions
// end on the way, which takes a backend that can move its clock.
func RunModel(t *testing.T, open Factory, timePasses bool) {
	t.Helper()
	backend := open(t, modelRetention)
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t.Context(), rt, backend)
		actions := map[string]func(*rapid.T){
			"":         m.compare,
			"claim":    m.claim,
			"extend":   m.extend,
			"complete": m.complete,
			"release":  m.release,
			"park":     m.park,
			"discard":  m.discard,
		}
		if timePasses {
			actions["pass"] = m.pass
		}
		rt.Repeat(actions)
	})
}

const (
	modelLease     = time.Minute
	modelRetention = 10 * time.Minute
)

// machine drives two ledgers and the model side by side.
type machine struct {
	ctx     context.Context //nolint:containedctx // the test's own
	backend Backend
	workers []Ledger
	events  []*modelEvent
	claims  []*modelClaim
	clock   time.Duration // passed so far
}

// modelEvent is what is true of one event.
type modelEvent struct {
	key      event.EventKey
	state    string
	replay   int
	failures int
	crashes  int
	first    bool // a failure is remembered
	owner    *modelClaim
	lease    time.Duration // when it ends
	expires  time.Duration // when the mark ends
}

// modelClaim is one claim that was granted.
type modelClaim struct {
	worker Ledger
	event  *modelEvent
	claim  *dedup.Claim
	ended  string // how it ended, as far as its worker knows
}

func newMachine(ctx context.Context, rt *rapid.T, b Backend) *machine {
	m := &machine{ctx: ctx, backend: b, workers: []Ledger{b.Open(), b.Open()}}
	for range rapid.IntRange(1, 2).Draw(rt, "events") {
		m.events = append(m.events, &modelEvent{key: newKey()})
	}
	return m
}

// now brings the event up to the time: its mark may have ended.
func (m *machine) now(e *modelEvent) *modelEvent {
	if e.state != "" && e.state != "parked" && m.clock >= e.expires {
		*e = modelEvent{key: e.key}
	}
	return e
}

func (e *modelEvent) write(m *machine, state string) {
	e.state, e.expires = state, m.clock+modelRetention
}

func (m *machine) claim(rt *rapid.T) {
	w := rapid.SampledFrom(m.workers).Draw(rt, "worker")
	e := m.now(rapid.SampledFrom(m.events).Draw(rt, "event"))
	r := dedup.Request{Consumer: consumer, Key: e.key, Lease: modelLease, Redelivered: true, Replay: rapid.IntRange(0, 3).Draw(rt, "replay")}
	want := dedup.Claimed
	switch {
	case e.state == "done":
		want = dedup.Done
	case (e.state == "parked" || e.state == "discarded") && r.Replay <= e.replay:
		want = dedup.Parked
	case e.state == "claimed" && m.clock < e.lease:
		want = dedup.Busy
	}
	c, err := w.Claim(m.ctx, r)
	if err != nil || c.Status != want {
		rt.Fatalf("claim: got %v, %v; want %v", c, err, want)
	}
	if want != dedup.Claimed {
		return
	}
	if e.state == "claimed" {
		e.crashes++
	}
	if r.Replay > e.replay {
		e.replay, e.failures, e.crashes = r.Replay, 0, 0
	}
	e.write(m, "claimed")
	e.lease = m.clock + modelLease
	e.owner = &modelClaim{worker: w, event: e, claim: c}
	m.claims = append(m.claims, e.owner)
	if c.Failures != e.failures || c.Crashes != e.crashes || len(c.Attempts) != min(e.failures, 10) {
		rt.Fatalf("claim has %d failures, %d crashes, %d attempts; want %d, %d", c.Failures, c.Crashes, len(c.Attempts), e.failures, e.crashes)
	}
}

// settle does a call with any claim that was ever granted, and reports whether
// it must have changed the mark.
func (m *machine) settle(rt *rapid.T, outcome string, call func(*modelClaim) error) (*modelEvent, bool) {
	if len(m.claims) == 0 {
		rt.Skip("no claim")
	}
	c := rapid.SampledFrom(m.claims).Draw(rt, "claim")
	e := m.now(c.event)
	owns := e.owner == c && e.state == "claimed"
	repeat := c.ended != "" && (outcome == "claimed" || c.ended == outcome)
	err := call(c)
	switch {
	case (owns || repeat) && err != nil:
		rt.Fatalf("%s: %v", outcome, err)
	case owns || repeat:
	case err == nil:
		rt.Fatalf("%s: a claim that is not held changed the mark", outcome)
	case e.state != "" && !errors.Is(err, dedup.ErrLeaseLost):
		rt.Fatalf("%s: got %v, want ErrLeaseLost", outcome, err)
	}
	if owns {
		if outcome != "claimed" {
			c.ended = outcome
		}
		e.write(m, outcome)
	}
	return e, owns
}

func (m *machine) extend(rt *rapid.T) {
	if e, changed := m.settle(rt, "claimed", func(c *modelClaim) error { return c.worker.Extend(m.ctx, c.claim) }); changed {
		e.lease = m.clock + modelLease
	}
}

func (m *machine) complete(rt *rapid.T) {
	m.settle(rt, "done", func(c *modelClaim) error {
		return c.worker.Complete(m.ctx, c.claim, []*nats.Msg{m.backend.outgoing(c.event.key)})
	})
}

func (m *machine) release(rt *rapid.T) {
	var f *event.Attempt
	if rapid.Bool().Draw(rt, "spent") {
		f = failure(1, rapid.StringN(0, 2000, -1).Draw(rt, "error"))
	}
	if e, changed := m.settle(rt, "waiting", func(c *modelClaim) error { return c.worker.Release(m.ctx, c.claim, f, nil) }); changed {
		e.fail(f)
	}
}

func (m *machine) park(rt *rapid.T) {
	f := failure(1, "parked")
	e, changed := m.settle(rt, "parked", func(c *modelClaim) error {
		return c.worker.Park(m.ctx, c.claim, f, m.backend.letter(c.event.key))
	})
	if changed {
		e.fail(f)
	}
}

func (e *modelEvent) fail(f *event.Attempt) {
	if f == nil {
		return
	}
	e.failures++
	e.first = true
}

func (m *machine) discard(rt *rapid.T) {
	w := rapid.SampledFrom(m.workers).Draw(rt, "worker")
	e := m.now(rapid.SampledFrom(m.events).Draw(rt, "event"))
	if err := w.Discard(m.ctx, consumer, e.key); err != nil {
		rt.Fatalf("discard: %v", err)
	}
	if e.state == "parked" {
		e.write(m, "discarded")
	}
}

func (m *machine) pass(rt *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Second, modelLease / 2, modelLease, modelRetention - modelLease, modelRetention,
	}).Draw(rt, "pass")
	m.backend.Pass(d)
	m.clock += d
}

// compare looks at every mark after every call.
func (m *machine) compare(rt *rapid.T) {
	for i, e := range m.events {
		e = m.now(e)
		got, known, err := m.workers[i%len(m.workers)].Mark(m.ctx, consumer, e.key)
		if err != nil {
			rt.Fatal(err)
		}
		if known != (e.state != "") || got.State != e.state || got.Replay != e.replay || got.Failures != e.failures || got.Crashes != e.crashes {
			rt.Fatalf("mark is %+v, want %+v", got, e)
		}
		if (got.First != nil) != e.first {
			rt.Fatalf("first failure is %+v, want %v", got.First, e.first)
		}
	}
}
