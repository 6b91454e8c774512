package dlq

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// rewrite stores a letter again, as change makes it, in the place of the one that was
// read. The error matches [bus.ErrConflict] if somebody else has replaced or removed
// that meanwhile, and [bus.ErrTooLarge] if there is no room for what change adds. What
// has begun does not end with ctx.
func (s *Stream) rewrite(ctx context.Context, l *letter, change func(*packer) error) error {
	m := &nats.Msg{Subject: l.subject, Header: maps.Clone(l.header), Data: l.data}
	for name := range m.Header {
		if event.IsControl(name) { // of the answer that brought it
			delete(m.Header, name)
		}
	}
	delete(m.Header, headerReplayed)
	m.Header[headerParked] = []string{formatTime(l.entry.Stored)}
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(l.entry.Sequence, 10)}
	err := pack(m, s.bus.Conn().MaxPayload(), change)
	if err != nil { // the history is what can be done without
		delete(m.Header, headerAttempts)
		m.Header[headerCut] = []string{"1"}
		err = pack(m, s.bus.Conn().MaxPayload(), change)
	}
	if err != nil {
		return fmt.Errorf("dlq: rewrite letter %s: %w", l.entry.ID, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	receipt, err := s.publish(ctx, m)
	if err != nil {
		return fmt.Errorf("dlq: rewrite letter %s: %w", l.entry.ID, err)
	}
	l.entry.Sequence, l.header = receipt.Sequence, m.Header
	return nil
}

func pack(m *nats.Msg, maxPayload int64, change func(*packer) error) error {
	p, err := newPacker(m, maxPayload)
	if err != nil {
		return err
	}
	return change(p)
}

// publish stores a message.
func (s *Stream) publish(ctx context.Context, m *nats.Msg) (bus.Receipt, error) {
	pending, err := s.bus.Send(ctx, m)
	if err != nil {
		return bus.Receipt{}, err
	}
	return pending.Wait(ctx)
}
