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
	"github.com/rs/zerolog"

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
	feed     *feed // it holds a place of its budget
	extra    int   // or this many bytes instead of one
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

	beat    time.Time // last heartbeat; belongs to inFlight
	beating bool      // it is under way; likewise
}

// newDelivery reads where the message is stored from its reply subject.
func newDelivery(c *Consumer, m *nats.Msg, f *feed) (*delivery, error) {
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
		feed:     f,

		// What comes by the durable that catches up may have come by the other one.
		redelivered: meta.NumDelivered > 1 || f.catchingUp,
		delivered:   int(min(meta.NumDelivered, math.MaxInt32)),

		beat: time.Now(),
	}
	if c.bus.Names().IsRedrive(c.cfg.Name, m.Subject) {
		d.redrive, _ = dlq.RedriveOf(m.Header)
		d.redelivered = true
	}
	d.lane = laneOf(d, f.own)
	return d, nil
}

// begun is when the event was first stored, by the server's clock: neither a
// retry nor a replay makes it younger.
func (d *delivery) begun() time.Time {
	if !d.redrive.Stored.IsZero() {
		return d.redrive.Stored
	}
	return d.stored
}

func (d *delivery) origin() dlq.Origin {
	return dlq.Origin{Stream: d.stream, Sequence: d.sequence, Time: d.stored}
}

// giveUpPlace lets others have d's place while d waits behind many of its key.
func (d *delivery) giveUpPlace() {
	if bytes := int(bus.PayloadSize(d.msg)); d.feed.budget.swap(bytes) {
		d.extra = bytes
	}
}

// leavePlace ends d's hold on the process.
func (d *delivery) leavePlace() {
	if d.extra > 0 {
		d.feed.budget.shrink(d.extra)
		return
	}
	d.feed.budget.release(1)
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

// The ways to settle a delivery, and the sign of life that extends its AckWait.

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

// Keys of the log.
const (
	keyEventID     = "event_id"
	keyEventType   = "event_type"
	keyEventKey    = "event_key"
	keyConsumer    = "consumer"
	keyAttempt     = "attempt"
	keyCorrelation = "correlation_id"
	keySubject     = "subject"
)

// eventLog names the event. Its attributes are logged as they came, percent-
// encoded; a structured or undecodable message has none in its headers.
func (c *Consumer) eventLog(d *delivery, l *zerolog.Event) *zerolog.Event {
	for key, header := range map[string]string{keyEventID: "ce-id", keyEventType: "ce-type", keyCorrelation: "ce-" + event.ExtCorrelation} {
		if v := d.msg.Header[header]; len(v) > 0 {
			l = l.Str(key, v[0])
		}
	}
	return l.Str(keyEventKey, string(d.key)).Str(keySubject, d.msg.Subject).Uint64("sequence", d.sequence)
}
