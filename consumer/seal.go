package consumer

import (
	"context"
	"crypto/sha1" //nolint:gosec // for UUIDv5
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// seal makes a step the messages that are committed: its events, then its timers,
// then its changes of documents. The ids are derived from what caused them, so a
// rerun emits the same ones and a half-finished step repeats harmlessly. What can
// never be stored is found here, before any is sent: such an error is [Permanent].
func (c *Consumer) seal(ctx context.Context, d *delivery, cause event.Event, r run) ([]*nats.Msg, error) {
	step := r.step
	out := make([]*nats.Msg, 0, len(step.Events)+len(step.Timers)+len(step.Cancel)+len(step.State))
	for i, draft := range step.Events {
		m, err := c.message(draft, c.identified(derivedIdentity(c.cfg.Name, cause, d.key, i)))
		if err != nil {
			return nil, Permanent(fmt.Errorf("consumer: outgoing event %d of %s: %w", i, cause.Type(), err))
		}
		out = append(out, m)
	}
	timers, err := c.timers(ctx, d, cause, step)
	if err != nil {
		return nil, fmt.Errorf("consumer: timers of %s: %w", cause.Type(), err)
	}
	documents, err := state.Messages(c.ledger, step.State, r.reads)
	if err != nil {
		return nil, Permanent(fmt.Errorf("consumer: state after %s: %w", cause.Type(), err))
	}
	return append(append(out, timers...), documents...), nil
}

// message is a draft as it is stored.
func (c *Consumer) message(draft event.Draft, id event.Identity) (*nats.Msg, error) {
	m, err := c.bus.Names().SealedMessage(draft, id)
	if err != nil {
		return nil, err
	}
	return m, c.bus.Fit(m)
}

// identified adds what this consumer writes into every event that it emits.
func (c *Consumer) identified(id event.Identity) event.Identity {
	id.Source, id.TypePrefix = c.cfg.Source, c.bus.Names().TypePrefix
	return id
}

// timers are the messages that set and cancel a step's timers.
func (c *Consumer) timers(ctx context.Context, d *delivery, cause event.Event, step Step) ([]*nats.Msg, error) {
	if len(step.Timers)+len(step.Cancel) == 0 {
		return nil, nil
	}
	if err := step.Validate(); err != nil {
		return nil, Permanent(err)
	}
	longest, err := c.schedules.limit(ctx)
	if err != nil {
		return nil, err
	}
	c.health.Clear(partTimers)
	msgs := make([]*nats.Msg, 0, len(step.Timers)+len(step.Cancel))
	for _, t := range step.Timers {
		if longest > 0 && t.After >= longest {
			return nil, Permanent(fmt.Errorf("%w: %s after %v: stream %s drops messages after %v", ErrTimer, t.Name, t.After, c.schedules.timers, longest))
		}
		m, err := c.timer(d, cause, t)
		if err != nil {
			return nil, Permanent(fmt.Errorf("timer %s: %w", t.Name, err))
		}
		msgs = append(msgs, m)
	}
	for _, id := range step.Cancel {
		msgs = append(msgs, c.cancellation(cause, id))
	}
	return msgs, nil
}

// timer is the message that waits at the server. What it will publish is encoded
// now; the server takes its own headers off then.
func (c *Consumer) timer(d *delivery, cause event.Event, t Timer) (*nats.Msg, error) {
	due := d.firstStored().Add(t.After)
	m, err := c.message(t.Event, c.identified(TimerIdentity(c.cfg.Name, cause, t.ID(), due)))
	if err != nil {
		return nil, err
	}
	m.Header[jetstream.ScheduleHeader] = []string{event.ScheduleAt(due)}
	m.Header[jetstream.ScheduleTargetHeader] = []string{c.bus.Names().DueSubject(m.Subject)}
	m.Subject = c.bus.Names().TimerSubject(c.cfg.Name, t.Name, t.Event.Key)
	return m, c.bus.Fit(m)
}

// tombstone is how long the message that cancels a timer is kept. It must still be
// there when a firing that has begun reaches the stream, which then refuses that.
const tombstone = "5s"

// cancellation is the message that takes a timer's place and soon vanishes.
// Its id is derived: the copy that a rerun sends must not end a timer that was
// set again since.
func (c *Consumer) cancellation(cause event.Event, id TimerID) *nats.Msg {
	return &nats.Msg{
		Subject: c.bus.Names().TimerSubject(c.cfg.Name, id.Name, id.Key),
		Header: nats.Header{
			jetstream.MsgRollup:    {jetstream.MsgRollupSubject},
			jetstream.MsgTTLHeader: {tombstone},
			nats.MsgIdHdr:          {derivedID(c.cfg.Name, event.EventKeyOf(cause), "cancel", id.Name, string(id.Key))},
		},
	}
}

// DerivedIdentity is the identity of the index-th event that consumer emits
// because of cause, but for its source: id UUIDv5(consumer, event key, index),
// the cause's correlation and trace, causation the cause's id, time now.
func DerivedIdentity(consumer event.Consumer, cause event.Event, index int) event.Identity {
	return derivedIdentity(consumer, cause, event.EventKeyOf(cause), index)
}

func derivedIdentity(consumer event.Consumer, cause event.Event, key event.EventKey, index int) event.Identity {
	return follow(cause, derivedID(consumer, key, strconv.Itoa(index)), time.Now().UTC())
}

// TimerIdentity is the identity of the event of a timer that consumer sets
// because of cause, but for its source: id UUIDv5(consumer, event key, "timer",
// name, key), time the instant at which it is due, the rest as in [DerivedIdentity].
func TimerIdentity(consumer event.Consumer, cause event.Event, id TimerID, due time.Time) event.Identity {
	return follow(cause, derivedID(consumer, event.EventKeyOf(cause), "timer", id.Name, string(id.Key)), due)
}

// follow is the identity of an event that cause leads to.
func follow(cause event.Event, id string, at time.Time) event.Identity {
	return event.Identity{
		ID:          id,
		Time:        at.UTC(),
		Correlation: event.Extension(cause, event.ExtCorrelation),
		Causation:   cause.ID(),
		Traceparent: event.Extension(cause, event.ExtTraceparent),
		Tracestate:  event.Extension(cause, event.ExtTracestate),
	}
}

// outgoingIDs is the UUIDv5 namespace of derived event ids (ADR 0001).
var outgoingIDs = uuid.MustParse("6f1f8a52-5c1c-5e0a-9d0b-4a7e2f0f6c11") //nolint:gochecknoglobals // Go has no constants of this type

// derivedID is UUIDv5 over (consumer, event key of the cause, parts). No part but
// the last may contain a NUL.
func derivedID(consumer event.Consumer, key event.EventKey, parts ...string) string {
	name := make([]byte, 0, 128)
	name = append(name, outgoingIDs[:]...)
	name = append(name, consumer...)
	name = append(name, 0)
	name = append(name, key...)
	for _, part := range parts {
		name = append(name, 0)
		name = append(name, part...)
	}
	sum := sha1.Sum(name) //nolint:gosec // that is what UUIDv5 is made with
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x50, id[8]&0x3f|0x80
	return id.String()
}
