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

// delivery is one message that the server has delivered to this process.
type delivery struct {
	msg      *nats.Msg
	consumer *Consumer
	stream   string
	sequence uint64
	stored   time.Time
	feed     *feed
	extra    int // bytes that it takes of the budget instead of a place; 0 if it has a place
	// partition is the one that it is of, for a ledger with partitions.
	partition *partition
	waits     bool        // in this process, for its next run, which has its place
	lane      string      // see laneOf
	redrive   dlq.Redrive // zero for an original delivery
	// redelivered is true if the event may have been delivered before: by this
	// message, by the one that a redrive sends again, or through the other durable.
	redelivered bool
	delivered   int // how often this message was delivered, this time included
	key         event.EventKey
	eventType   string // "" if the message cannot be decoded

	mu sync.Mutex
	// claim is set while the handler runs: the heartbeat renews its lease.
	claim *dedup.Claim
	// cancel cancels the running handler.
	cancel context.CancelCauseFunc
	// beatUntil is when the heartbeat stops renewing a handler that ignores its timeout.
	beatUntil time.Time
	// settled stops the heartbeat. A "+WPI" after a nak would replace the nak's delay
	// by a whole AckWait.
	settled bool

	// told is what middleware is told of a run. It has a lock of its own: mu is held
	// while a renewal waits for the server.
	told told

	beat    time.Time // when the last renewal began; guarded by inFlight.mu
	beating bool      // a renewal is running; guarded by inFlight.mu
}

// newDelivery makes a delivery of a message. Stream, sequence and number of
// deliveries come from the message's reply subject.
func newDelivery(c *Consumer, m *nats.Msg, f *feed) (*delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("consumer: delivery on %s: %w", m.Subject, err)
	}
	var own *partition
	if f.slice != nil {
		if own = f.slice.take(m, meta); own == nil {
			return nil, nil
		}
	}
	d := &delivery{
		msg:      m,
		consumer: c,
		stream:   meta.Stream,
		sequence: meta.Sequence.Stream,
		stored:   meta.Timestamp,
		feed:     f,

		// What the catch-up durable delivers, the other durable may have delivered before.
		redelivered: meta.NumDelivered > 1 || f.catchingUp,
		delivered:   int(min(meta.NumDelivered, math.MaxInt32)),

		beat: time.Now(),
	}
	if c.bus.Names().IsRedrive(c.cfg.Name, m.Subject) {
		d.redrive, _ = dlq.RedriveOf(m.Header)
		d.redelivered = true
	}
	if own != nil {
		d.partition, d.redelivered = own, d.redelivered || own.tenure.Careful()
	}
	d.lane = laneOf(d, f.own)
	return d, nil
}

// firstStored is when the event was stored first, by the server's clock. A retry or
// a replay stores it again and does not change that time.
func (d *delivery) firstStored() time.Time {
	if !d.redrive.Stored.IsZero() {
		return d.redrive.Stored
	}
	return d.stored
}

func (d *delivery) origin() dlq.Origin {
	return dlq.Origin{Stream: d.stream, Sequence: d.sequence, Time: d.stored}
}

// giveUpPlace frees d's place for other events, while d waits behind many of its key.
// If there is no room for d's bytes, d keeps its place.
func (d *delivery) giveUpPlace() {
	if bytes := int(bus.PayloadSize(d.msg)); d.feed.budget.swap(bytes) {
		d.extra = bytes
	}
}

// leavePlace gives back what d took of the budget, its place or its bytes.
func (d *delivery) leavePlace() {
	if d.waits {
		return
	}
	if d.extra > 0 {
		d.feed.budget.shrink(d.extra)
		return
	}
	d.feed.budget.release(1)
}

// laneOf returns the name of d's lane, within which order is kept. Farandole's own
// subjects end in the key: "ord-1" in events.order.placed.v1.ord-1. On a foreign
// stream it is the stream's name, and the partition key or else the correlation of a
// binary event: "SHOP ord-1". The stream is part of it because sequences of two
// streams say nothing about order. Any other event has a lane for itself.
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

// What can be answered: ack, nak and term settle the delivery, inProgress extends
// its AckWait.

func (d *delivery) ack() error        { return d.settle("+ACK") }
func (d *delivery) inProgress() error { return d.send("+WPI") }

func (d *delivery) nak(delay time.Duration) error {
	if d.partition != nil {
		d.partition.again(d, delay)
		return nil
	}
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
	if d.partition != nil {
		if verb != "+WPI" { // nobody waits for a sign of life, either
			d.partition.tenure.Leave(d.sequence)
		}
		return nil
	}
	if err := d.consumer.settle(d.msg.Reply, verb); err != nil {
		return fmt.Errorf("consumer: settle %s: %w", d.msg.Subject, err)
	}
	return nil
}

// beginRun has the heartbeat renew the claim until the given time. The heartbeat
// calls cancel if a renewal fails.
func (d *delivery) beginRun(claim *dedup.Claim, cancel context.CancelCauseFunc, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claim, d.cancel, d.beatUntil = claim, cancel, until
}

// overdue reports whether the handler runs and has exceeded its timeout.
func (d *delivery) overdue(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claim != nil && now.After(d.beatUntil)
}

// endRun ends what beginRun began. It waits for a renewal in progress, so that the
// ledger call which follows is the only writer of the claim.
func (d *delivery) endRun() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claim, d.cancel = nil, nil
}

// Keys of log fields.
const (
	keyEventID     = "event_id"
	keyEventType   = "event_type"
	keyEventKey    = "event_key"
	keyConsumer    = "consumer"
	keyAttempt     = "attempt"
	keyCorrelation = "correlation_id"
	keySubject     = "subject"
)

// eventLog adds what identifies the event to a line of the log. The values are those
// of the headers, still percent-encoded. A structured or undecodable message has
// none there.
func (c *Consumer) eventLog(d *delivery, l *zerolog.Event) *zerolog.Event {
	for key, header := range map[string]string{keyEventID: "ce-id", keyEventType: "ce-type", keyCorrelation: "ce-" + event.ExtCorrelation} {
		if v := d.msg.Header[header]; len(v) > 0 {
			l = l.Str(key, v[0])
		}
	}
	return l.Str(keyEventKey, string(d.key)).Str(keySubject, d.msg.Subject).Uint64("sequence", d.sequence)
}
