package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// outgoingIDs is the UUIDv5 namespace of derived event ids (ADR 0001).
var outgoingIDs = uuid.MustParse("6f1f8a52-5c1c-5e0a-9d0b-4a7e2f0f6c11") //nolint:gochecknoglobals // Go has no constants of this type

// seal gives a step's events their identity. The ids are derived from what
// caused them, so a rerun emits the same ones and a half-finished step repeats
// harmlessly. What can never be stored is found here, before any is sent.
func (c *Consumer) seal(ctx context.Context, d *delivery, cause event.Event, step Step, reads *state.Reads) ([]*nats.Msg, error) {
	out := make([]*nats.Msg, 0, len(step.Events)+len(step.Timers)+len(step.Cancel)+len(step.State))
	for i, draft := range step.Events {
		m, err := c.message(draft, c.identity(cause, i))
		if err != nil {
			return nil, Permanent(fmt.Errorf("consumer: outgoing event %d of %s: %w", i, cause.Type(), err))
		}
		out = append(out, m)
	}
	timers, err := c.timers(ctx, d, cause, step)
	if err != nil {
		return nil, fmt.Errorf("consumer: timers of %s: %w", cause.Type(), err)
	}
	documents, err := state.Messages(c.ledger, step.State, reads)
	if err != nil {
		return nil, Permanent(fmt.Errorf("consumer: state after %s: %w", cause.Type(), err))
	}
	return append(append(out, timers...), documents...), nil
}

func (c *Consumer) message(draft event.Draft, id event.Identity) (*nats.Msg, error) {
	e, err := draft.Seal(id)
	if err != nil {
		return nil, err
	}
	m, err := c.bus.Message(e)
	if err != nil {
		return nil, err
	}
	return m, c.bus.Fit(m)
}

// astray reports whether a step met no stream because one of its messages has a
// subject that no stream stores, while the event stream is there.
func (c *Consumer) astray(ctx context.Context, out []*nats.Msg, err error) bool {
	if !errors.Is(err, bus.ErrNoStream) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	js := c.bus.JetStream()
	if _, err := js.Stream(ctx, c.bus.Names().EventsStream()); err != nil {
		return false
	}
	return slices.ContainsFunc(out, func(m *nats.Msg) bool {
		_, err := js.StreamNameBySubject(ctx, m.Subject)
		return errors.Is(err, jetstream.ErrStreamNotFound)
	})
}

func (c *Consumer) identity(cause event.Event, index int) event.Identity {
	id := DerivedIdentity(c.cfg.Name, cause, index)
	id.Source = c.cfg.Source
	id.TypePrefix = c.bus.Names().TypePrefix
	return id
}

// DerivedIdentity is the identity of the index-th event that consumer emits
// because of cause, but for its source: id UUIDv5(consumer, event key, index),
// the cause's correlation and trace, causation the cause's id, time now.
func DerivedIdentity(consumer event.Consumer, cause event.Event, index int) event.Identity {
	return follow(cause, derivedID(consumer, cause, strconv.Itoa(index)), time.Now().UTC())
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

// derivedID is UUIDv5 over (consumer, event key of cause, parts). No part but
// the last may contain a NUL.
func derivedID(consumer event.Consumer, cause event.Event, parts ...string) string {
	name := make([]byte, 0, 96)
	name = append(name, consumer...)
	name = append(name, 0)
	name = append(name, event.EventKeyOf(cause)...)
	for _, part := range parts {
		name = append(name, 0)
		name = append(name, part...)
	}
	return uuid.NewSHA1(outgoingIDs, name).String()
}
