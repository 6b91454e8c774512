package consumer

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
)

// outgoingIDs is the UUIDv5 namespace of derived event ids (ADR 0001).
var outgoingIDs = uuid.MustParse("6f1f8a52-5c1c-5e0a-9d0b-4a7e2f0f6c11") //nolint:gochecknoglobals // Go has no constants of this type

// seal gives a step's events their identity. The ids are derived from what
// caused them, so a rerun emits the same ones and a half-finished step repeats
// harmlessly. What can never be stored is found here, before any is sent.
func (c *Consumer) seal(cause bus.Event, step Step) ([]*nats.Msg, error) {
	out := make([]*nats.Msg, 0, len(step.Events))
	for i, draft := range step.Events {
		m, err := c.message(draft, c.identity(cause, i))
		if err != nil {
			return nil, Permanent(fmt.Errorf("consumer: outgoing event %d of %s: %w", i, cause.Type(), err))
		}
		out = append(out, m)
	}
	return out, nil
}

func (c *Consumer) message(draft bus.Draft, id bus.Identity) (*nats.Msg, error) {
	e, err := draft.Seal(id)
	if err != nil {
		return nil, err
	}
	m, err := c.bus.Message(e)
	if err != nil {
		return nil, err
	}
	if size, limit := payloadSize(m), c.bus.Conn().MaxPayload(); limit > 0 && size > limit {
		return nil, fmt.Errorf("%w: %d bytes, the server takes %d", bus.ErrTooLarge, size, limit)
	}
	return m, nil
}

// payloadSize is what the server's max_payload bounds: headers and data.
func payloadSize(m *nats.Msg) int64 {
	size := len("NATS/1.0\r\n") + len("\r\n") + len(m.Data)
	for name, values := range m.Header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return int64(size)
}

func (c *Consumer) identity(cause bus.Event, index int) bus.Identity {
	id := DerivedIdentity(c.cfg.Name, cause, index)
	id.Source = c.cfg.Source
	id.TypePrefix = c.bus.Names().TypePrefix
	return id
}

// DerivedIdentity is the identity of the index-th event that consumer emits
// because of cause, but for its source: id UUIDv5(consumer, event key, index),
// the cause's correlation and trace, causation the cause's id, time now.
func DerivedIdentity(consumer bus.Consumer, cause bus.Event, index int) bus.Identity {
	name := make([]byte, 0, 80)
	name = append(name, consumer...)
	name = append(name, 0)
	name = append(name, bus.EventKeyOf(cause)...)
	name = append(name, 0)
	name = strconv.AppendInt(name, int64(index), 10)
	return bus.Identity{
		ID:          uuid.NewSHA1(outgoingIDs, name).String(),
		Time:        time.Now().UTC(),
		Correlation: bus.Extension(cause, bus.ExtCorrelation),
		Causation:   cause.ID(),
		Traceparent: bus.Extension(cause, bus.ExtTraceparent),
		Tracestate:  bus.Extension(cause, bus.ExtTracestate),
	}
}
