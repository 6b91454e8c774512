package consumer

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// delivery is one message as the server handed it to this process, until it is
// settled.
type delivery struct {
	msg      *nats.Msg
	answer   func(subject, verb string) error // settles it
	stream   string
	sequence uint64
	stored   time.Time
	budget   *budget // where it holds a place
	extra    int     // or this many bytes instead of one
	lane     string
	redrive  dlq.Redrive // zero for an original delivery
	// redelivered says that the event has been handed out before: this message,
	// or the one that a redrive brings back.
	redelivered bool
	delivered   int // how often this message was, this time included
	key         event.EventKey
	eventType   string // "" if it cannot be decoded

	mu sync.Mutex
	// claim is set while the heartbeat has to renew its lease.
	claim *dedup.Claim
	// cancel ends the running handler.
	cancel context.CancelCauseFunc
	// beatUntil ends the heartbeat of a handler that ignores its timeout.
	beatUntil time.Time
	// settled ends the heartbeat: a sign of life after a nak would replace the
	// nak's delay by a whole ack wait.
	settled bool

	beat    time.Time // last heartbeat; belongs to flight
	beating bool      // it is under way; likewise
}

// newDelivery reads where the message is stored from its reply subject.
func newDelivery(c *Consumer, m *nats.Msg, s source) (*delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("consumer: delivery on %s: %w", m.Subject, err)
	}
	d := &delivery{
		msg:      m,
		answer:   c.settle,
		stream:   meta.Stream,
		sequence: meta.Sequence.Stream,
		stored:   meta.Timestamp,
		budget:   s.budget,

		// What a durable brings that catches up may have come by the other one.
		redelivered: meta.NumDelivered > 1 || s.catchingUp,
		delivered:   int(min(meta.NumDelivered, math.MaxInt32)),

		beat: time.Now(),
	}
	if c.bus.Names().IsRedrive(c.cfg.Name, m.Subject) {
		d.redrive, _ = dlq.RedriveOf(m.Header)
		d.redelivered = true
	}
	d.lane = laneOf(d, s.own)
	return d, nil
}

// giveUpPlace lets others have d's place while d waits behind many of its key.
func (d *delivery) giveUpPlace() {
	if bytes := int(bus.PayloadSize(d.msg)); d.budget.swap(bytes) {
		d.extra = bytes
	}
}

// leavePlace ends d's hold on the process.
func (d *delivery) leavePlace() {
	if d.extra > 0 {
		d.budget.shrink(d.extra)
		return
	}
	d.budget.release(1)
}

// laneOf names the key within which order is kept: the key token of our own
// subjects, which end in it; elsewhere the partition key or correlation of a binary event. A
// foreign stream has lanes of its own, because sequences of two streams say
// nothing about order.
func laneOf(d *delivery, own bool) string {
	if own {
		return d.msg.Subject[strings.LastIndexByte(d.msg.Subject, '.')+1:]
	}
	for _, name := range []string{"ce-" + event.ExtKey, "ce-" + event.ExtCorrelation} {
		if v := d.msg.Header[name]; len(v) > 0 {
			return d.stream + " " + v[0]
		}
	}
	return d.stream + " " + strconv.FormatUint(d.sequence, 10)
}

// The four ways to settle a delivery, and the sign of life. They are written
// to the connection and not confirmed: should one get lost, the message is
// delivered again and the ledger knows the answer.

func (d *delivery) ack() error        { return d.settle("+ACK") }
func (d *delivery) inProgress() error { return d.send("+WPI") }

func (d *delivery) nak(delay time.Duration) error {
	if delay <= 0 {
		return d.settle("-NAK")
	}
	return d.settle(fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}

func (d *delivery) term(reason string) error { return d.settle("+TERM " + reason) }

func (d *delivery) settle(verb string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled = true
	return d.send(verb)
}

func (d *delivery) send(verb string) error {
	if err := d.answer(d.msg.Reply, verb); err != nil {
		return fmt.Errorf("consumer: settle %s: %w", d.msg.Subject, err)
	}
	return nil
}

// hold puts the claim and the handler's cancellation under the heartbeat.
func (d *delivery) hold(claim *dedup.Claim, cancel context.CancelCauseFunc, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claim, d.cancel, d.beatUntil = claim, cancel, until
}

// overdue reports whether a handler runs that has outrun its timeout.
func (d *delivery) overdue(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claim != nil && now.After(d.beatUntil)
}

// drop takes it out again. It waits for a renewal in progress, so that the
// ledger call which follows is the only writer of the claim.
func (d *delivery) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claim, d.cancel = nil, nil
}
