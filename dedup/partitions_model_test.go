package dedup_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// TestPartitions_against_a_model has owners of one partition follow each other, by
// farewell, by death, or as zombies that go on. A model of a few lines says what each
// call has to answer.
func TestPartitions_against_a_model(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	var round atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		m := &tenures{t: t, bus: b, consumer: event.Consumer(fmt.Sprint("payment-", round.Add(1))), started: map[int]string{}, crashes: map[int]int{}}
		m.take(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":         m.compare,
			"take":     m.take,
			"again":    m.takeAgain,
			"claim":    m.claim,
			"complete": m.complete,
			"release":  m.release,
			"postpone": m.postpone,
			"park":     m.park,
			"farewell": m.farewell,
		})
		m.take(rt)
		m.final(rt)
	})
}

const (
	modelPartition = 7
	modelWindow    = 3
)

// tenures is what is true of one partition, and those who own it or did.
type tenures struct {
	t        *testing.T
	bus      *bus.Bus
	consumer event.Consumer
	owners   []*owner // the last one is the owner, unless it has said farewell
	messages []*modelMessage
	states   [modelEvents]string // "" while it is open, "done", "parked"
	failures [modelEvents]int
	crashes  map[int]int
	// started names, by event, the owner that last said that it starts.
	started map[int]string
	floor   uint64 // the highest that was seen
}

const modelEvents = 4

type modelMessage struct {
	sequence uint64
	event    int
	ended    bool
}

type owner struct {
	id       string
	ledger   *dedup.Partitions
	tenure   *dedup.Tenure
	entered  int // messages
	claims   map[int]*modelHold
	careful  int
	suspects map[int]bool
	left     bool
}

type modelHold struct {
	claim   *dedup.Claim
	message *modelMessage
	starts  bool
}

func (m *tenures) current() *owner { return m.owners[len(m.owners)-1] }

// someone is mostly the owner, and else a zombie.
func (m *tenures) someone(rt *rapid.T) *owner {
	if rapid.IntRange(0, 3).Draw(rt, "who") > 0 {
		return m.current()
	}
	return rapid.SampledFrom(m.owners).Draw(rt, "owner")
}

func (m *tenures) owns(o *owner) bool { return o == m.current() && !o.left }

func (m *tenures) take(rt *rapid.T) { m.takeAs(rt, fmt.Sprint("owner", len(m.owners))) }

// takeAgain is what a process does that cannot know whether it has lost the partition.
func (m *tenures) takeAgain(rt *rapid.T) {
	m.takeAs(rt, rapid.SampledFrom(m.owners).Draw(rt, "who").id)
}

func (m *tenures) takeAs(rt *rapid.T, id string) {
	l, err := dedup.NewPartitions(m.bus, dedup.PartitionsConfig{})
	if err != nil {
		rt.Fatal(err)
	}
	o := &owner{id: id, ledger: l, claims: map[int]*modelHold{}, suspects: map[int]bool{}}
	taken, err := l.Take(m.t.Context(), m.consumer, []int{modelPartition}, dedup.Ownership{Owner: id, Window: modelWindow, Types: []event.Type{"order.placed.v1"}})
	if err != nil {
		rt.Fatal(err)
	}
	o.tenure = taken[modelPartition]
	if len(m.owners) > 0 {
		if m.current().left {
			clear(m.started)
		} else {
			o.careful = modelWindow
		}
	}
	for e, by := range m.started {
		o.suspects[e] = by != id
	}
	m.owners = append(m.owners, o)
	if got := o.tenure.Floor(); got < m.floor {
		rt.Fatalf("floor %d of a new owner, it was %d", got, m.floor)
	}
	for o.entered < len(m.messages) && m.messages[o.entered].sequence <= o.tenure.Floor() {
		o.entered++
	}
}

// claim claims what an owner reads next, or has given back.
func (m *tenures) claim(rt *rapid.T) {
	o := m.someone(rt)
	var msg *modelMessage
	var back []*modelMessage
	for _, x := range m.messages[:o.entered] {
		if !x.ended && o.claims[x.event] == nil && x.sequence > o.tenure.Floor() {
			back = append(back, x)
		}
	}
	if len(back) > 0 && rapid.Bool().Draw(rt, "again") {
		msg = rapid.SampledFrom(back).Draw(rt, "message")
	} else {
		if o.entered == len(m.messages) {
			sequence := uint64(rapid.IntRange(1, 3).Draw(rt, "apart"))
			if o.entered > 0 {
				sequence += m.messages[o.entered-1].sequence
			}
			m.messages = append(m.messages, &modelMessage{sequence: sequence, event: rapid.IntRange(0, modelEvents-1).Draw(rt, "event")})
		}
		msg = m.messages[o.entered]
		o.entered++
		if entered := o.tenure.Enter(msg.sequence); !entered && m.owns(o) {
			rt.Fatalf("message %d is not taken in by its owner", msg.sequence)
		}
	}
	m.claimed(rt, o, msg)
}

func (m *tenures) claimed(rt *rapid.T, o *owner, msg *modelMessage) {
	e := msg.event
	c, err := o.ledger.Claim(m.t.Context(), dedup.Request{Consumer: m.consumer, Key: keyOf(e), Tenure: o.tenure, Sequence: msg.sequence, Lease: time.Second})
	if !m.owns(o) {
		switch {
		case errors.Is(err, dedup.ErrLeaseLost):
		case err != nil:
			rt.Fatalf("a zombie's claim of %d: %v", e, err)
		case c.Status == dedup.Claimed:
			o.claims[e] = &modelHold{claim: c, message: msg}
		case c.Status == dedup.Done && m.states[e] != "done", c.Status == dedup.Parked && m.states[e] == "":
			rt.Fatalf("a zombie takes %d for %v, it is %q", e, c.Status, m.states[e])
		}
		return
	}
	if err != nil {
		rt.Fatalf("claim of %d: %v", e, err)
	}
	want := map[string]dedup.Status{"": dedup.Claimed, "done": dedup.Done, "parked": dedup.Parked}[m.states[e]]
	if o.claims[e] != nil {
		want = dedup.Busy
	}
	if c.Status != want {
		rt.Fatalf("event %d is %v, want %v", e, c.Status, want)
	}
	switch want {
	case dedup.Done, dedup.Parked:
		o.tenure.Leave(msg.sequence)
		msg.ended = true
	case dedup.Claimed:
		if o.suspects[e] {
			m.crashes[e]++
			delete(o.suspects, e)
		}
		h := &modelHold{claim: c, message: msg, starts: o.careful > 0 || m.crashes[e] > 0}
		o.careful = max(0, o.careful-1)
		if h.starts {
			m.started[e] = o.id
		}
		if c.Failures != m.failures[e] || c.Crashes != m.crashes[e] {
			rt.Fatalf("event %d after %d failures and %d crashes, want %d and %d", e, c.Failures, c.Crashes, m.failures[e], m.crashes[e])
		}
		o.claims[e] = h
	case dedup.Busy:
	}
}

// hold draws one that is held, by an owner or by a zombie.
func (m *tenures) hold(rt *rapid.T) (*owner, *modelHold) {
	o := m.someone(rt)
	var held []int
	for e := range modelEvents {
		if o.claims[e] != nil {
			held = append(held, e)
		}
	}
	if len(held) == 0 {
		return nil, nil
	}
	return o, o.claims[rapid.SampledFrom(held).Draw(rt, "held")]
}

// ends checks the answer of what ends a claim, and reports whether it counts.
func (m *tenures) ends(rt *rapid.T, o *owner, h *modelHold, what string, err error) bool {
	delete(o.claims, h.message.event)
	if !m.owns(o) {
		if !errors.Is(err, dedup.ErrLeaseLost) {
			rt.Fatalf("a zombie's %s of %d: %v, want ErrLeaseLost", what, h.message.event, err)
		}
		return false
	}
	if err != nil {
		rt.Fatalf("%s of %d: %v", what, h.message.event, err)
	}
	delete(m.started, h.message.event)
	return true
}

func (m *tenures) end(rt *rapid.T, h *modelHold, state string) {
	if e := h.message.event; m.states[e] != "" {
		rt.Fatalf("event %d ends twice, %s and %s", e, m.states[e], state)
	}
	m.states[h.message.event] = state
	h.message.ended = true
}

func (m *tenures) subject(root string, e int) string {
	return m.bus.Names().EventSubject("payment."+event.Type(root)+".v1", event.Key(fmt.Sprint(m.consumer, "-", e)))
}

func (m *tenures) message(root string, e int) *nats.Msg {
	return &nats.Msg{Subject: m.subject(root, e), Data: []byte("{}"), Header: nats.Header{}}
}

func (m *tenures) complete(rt *rapid.T) {
	o, h := m.hold(rt)
	if h == nil {
		return
	}
	err := o.ledger.Complete(m.t.Context(), h.claim, []*nats.Msg{m.message("captured", h.message.event)})
	if m.ends(rt, o, h, "complete", err) {
		m.end(rt, h, "done")
	}
}

func (m *tenures) park(rt *rapid.T) {
	o, h := m.hold(rt)
	if h == nil {
		return
	}
	err := o.ledger.Park(m.t.Context(), h.claim, nil, m.message("parked", h.message.event))
	if m.ends(rt, o, h, "park", err) {
		m.end(rt, h, "parked")
	}
}

func (m *tenures) release(rt *rapid.T) {
	o, h := m.hold(rt)
	if h == nil {
		return
	}
	var failure *event.Attempt
	if rapid.Bool().Draw(rt, "failed") {
		failure = &event.Attempt{Number: h.claim.Failures + 1, Error: "declined"}
	}
	err := o.ledger.Release(m.t.Context(), h.claim, failure, nil)
	if failure == nil && err == nil && !m.owns(o) { // it had nothing to say
		delete(o.claims, h.message.event)
		return
	}
	if m.ends(rt, o, h, "release", err) && failure != nil {
		m.failures[h.message.event]++
	}
}

// postpone ends a message, and its event comes again with another one.
func (m *tenures) postpone(rt *rapid.T) {
	o, h := m.hold(rt)
	if h == nil {
		return
	}
	failure := &event.Attempt{Number: h.claim.Failures + 1, Error: "declined"}
	err := o.ledger.Release(m.t.Context(), h.claim, failure, m.message("later", h.message.event))
	if m.ends(rt, o, h, "postpone", err) {
		m.failures[h.message.event]++
		h.message.ended = true
		last := m.messages[len(m.messages)-1].sequence
		m.messages = append(m.messages, &modelMessage{sequence: last + 1, event: h.message.event})
	}
}

func (m *tenures) farewell(rt *rapid.T) {
	o := m.someone(rt)
	if m.owns(o) && len(o.claims) > 0 {
		return // it waits for what runs
	}
	if err := o.tenure.Farewell(m.t.Context()); err != nil {
		rt.Fatal(err)
	}
	o.left = true
}

// compare checks that no floor passes what is open.
func (m *tenures) compare(rt *rapid.T) {
	most := uint64(0)
	for _, x := range m.messages {
		if !x.ended {
			break
		}
		most = x.sequence
	}
	for _, o := range m.owners {
		floor := o.tenure.Floor()
		if floor > most {
			rt.Fatalf("floor %d of %s, but what comes after %d is open", floor, o.id, most)
		}
	}
	heads, err := m.current().ledger.Heads(m.t.Context(), m.consumer)
	if err != nil {
		rt.Fatal(err)
	}
	head := heads[modelPartition]
	if head.Floor < m.floor || head.Floor > most || head.Owner != m.current().id || head.Farewell != m.current().left {
		rt.Fatalf("head %+v, want the floor between %d and %d, and %s", head, m.floor, most, m.current().id)
	}
	m.floor = head.Floor
}

// final has the last owner end everything, and counts what is stored.
func (m *tenures) final(rt *rapid.T) {
	o := m.current()
	for _, msg := range m.messages {
		if o.tenure.Enter(msg.sequence) {
			m.claimed(rt, o, msg)
		}
		if h := o.claims[msg.event]; h != nil && h.message == msg {
			err := o.ledger.Complete(m.t.Context(), h.claim, []*nats.Msg{m.message("captured", msg.event)})
			if m.ends(rt, o, h, "complete", err) {
				m.end(rt, h, "done")
			}
		}
	}
	if err := o.tenure.Farewell(m.t.Context()); err != nil {
		rt.Fatal(err)
	}
	o.left = true
	m.compare(rt)
	if n := len(m.messages); n > 0 && m.floor != m.messages[n-1].sequence {
		rt.Fatalf("floor %d at the end, want %d", m.floor, m.messages[n-1].sequence)
	}
	stored := map[string]int{}
	err := m.bus.Scan(m.t.Context(), m.bus.Names().EventsStream(), m.bus.Names().Root("events.payment.>"), func(subject string, _ uint64, _ []byte) error {
		stored[subject]++
		return nil
	})
	if err != nil {
		rt.Fatal(err)
	}
	for e, state := range m.states {
		for root, of := range map[string]string{"captured": "done", "parked": "parked"} {
			want := 0
			if state == of {
				want = 1
			}
			if n := stored[m.bus.Names().Stored(m.subject(root, e), event.DefaultPartitions)]; n != want {
				rt.Fatalf("event %d is %s, and %d messages %s are stored", e, state, n, root)
			}
		}
	}
}
