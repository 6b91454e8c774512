package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// Receipt says where a message is stored.
type Receipt struct {
	Stream   string
	Sequence uint64
	// Duplicate is true when the stream had already stored this message within its
	// duplicate window, as its subject, source and id say: nothing new was stored.
	Duplicate bool
}

// Pending is a publish in flight. It belongs to one goroutine at a time.
type Pending struct {
	msg   *nats.Msg
	bus   *Bus
	exact bool        // what is stored under its id must have the same data
	from  *notice     // the first notice that can concern this publish
	batch []*nats.Msg // of which this is the last, if it is one

	serial    uint64
	deadline  time.Time
	retries   int         // guarded by acks.mu
	replyEnd  int         // guarded by acks.writing
	unwritten atomic.Bool // the message is to be read yet
	released  atomic.Bool // the message may be another one by now

	signal   chan struct{} // has whoever waits look at answered and from
	answered atomic.Bool   // ack and ackErr are set
	ack      Receipt
	ackErr   error // as the client tells it

	settled bool
	err     error
}

// Seal is [event.Names.Seal] with this bus's names and source.
func (b *Bus) Seal(d event.Draft) (event.Event, error) { return b.cfg.Names.Seal(d, b.cfg.Source) }

// Message is [event.Names.Message] with this bus's names.
func (b *Bus) Message(e event.Event) (*nats.Msg, error) { return b.cfg.Names.Message(e) }

// Emit makes an event of a draft and stores it, as from an HTTP handler:
//
//	_, err := b.Emit(r.Context(), placed.New("ord-7f3a", order))
//
// Without an id of its own each call stores another event: who may be asked twice says
// which event it is, by [event.Draft.WithID]. Errors are those of [Bus.Seal] and [Bus.Publish].
func (b *Bus) Emit(ctx context.Context, d event.Draft) (Receipt, error) {
	e, err := b.Seal(d)
	if err != nil {
		return Receipt{}, err
	}
	return b.Publish(ctx, e)
}

// Publish stores one event and returns where. After an error matching
// [ErrUnavailable] the event may be stored or not; publishing it again is
// safe and then gives a receipt with Duplicate set if it was. Other data under the
// same source and id is an error matching [ErrIDTaken]. It returns the errors of [Bus.Message], [Bus.Send] and [Pending.Wait].
func (b *Bus) Publish(ctx context.Context, e event.Event) (Receipt, error) {
	p, err := b.PublishAsync(ctx, e)
	if err != nil {
		return Receipt{}, err
	}
	return p.Wait(ctx)
}

// PublishAsync sends one event; it blocks only while MaxPending publishes are
// in flight. It returns the errors of [Bus.Message] and [Bus.Send].
func (b *Bus) PublishAsync(ctx context.Context, e event.Event) (*Pending, error) {
	m, err := b.Message(e)
	if err != nil {
		return nil, err
	}
	return b.SendExact(ctx, m)
}

// Send sends any message to JetStream and returns without waiting for the
// acknowledgement. While MaxPending publishes are in flight it blocks until
// one ends or ctx does. The message must not be changed before Wait returns,
// and has no reply subject. Errors match [event.ErrInvalidName] (the subject or reply
// subject), [ErrDenied], [ErrUnavailable] or [ErrClosed]; others are told by Wait.
func (b *Bus) Send(ctx context.Context, m *nats.Msg) (*Pending, error) {
	p := &Pending{msg: m, bus: b, from: b.notices.last.Load()}
	if err := b.refusedInbox(deniedAcks); err != nil {
		return nil, p.wrap(err)
	}
	switch {
	case m.Subject == "" || strings.ContainsAny(m.Subject, " \t\r\n"):
		return nil, p.wrap(fmt.Errorf("%w: not a subject", event.ErrInvalidName))
	case m.Reply != "":
		return nil, p.wrap(fmt.Errorf("%w: the message has a reply subject", event.ErrInvalidName))
	}
	select {
	case b.acks.window <- struct{}{}:
	default:
		if err := b.waitWindow(ctx); err != nil {
			return nil, p.wrap(err)
		}
	}
	if err := b.acks.send(p); err != nil {
		return nil, p.wrap(publishFault(err))
	}
	return p, nil
}

// waitWindow takes a place in a full window.
func (b *Bus) waitWindow(ctx context.Context) error {
	select {
	case b.acks.window <- struct{}{}:
		return nil
	case <-b.closed:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %d publishes in flight: %w", ErrUnavailable, cap(b.acks.window), context.Cause(ctx))
	}
}

// Wait returns the receipt, or why the message is not (known to be) stored.
// It returns within the bus's PublishTimeout, and sooner when ctx ends.
// Waiting again gives the same answer.
//
// Errors match, and are told as soon as the server tells them, [ErrDenied],
// [ErrTooLarge], [ErrConflict], [ErrStreamFull], [ErrRefused], [ErrNoStream]
// (after half a second; a stream without a leader is [ErrUnavailable], for which
// the user needs publish on $JS.API.STREAM.NAMES), or, when there is no answer,
// [ErrUnavailable] or [ErrClosed]. A stream that answers that it has the message
// already is asked for it, which takes the grant to publish to
// $JS.API.STREAM.MSG.GET.<stream>: if it is another one, the error matches [ErrIDTaken].
func (p *Pending) Wait(ctx context.Context) (Receipt, error) {
	for !p.settled {
		switch {
		case p.answered.Load():
			p.settle(p.answer(ctx))
			continue
		case p.from.happened():
			p.notice(p.from)
			p.from = p.from.next
			continue
		}
		select {
		case <-p.signal:
		case <-ctx.Done():
			p.bus.acks.release(p)
			return Receipt{}, p.wrap(fmt.Errorf("%w: no acknowledgement yet: %w", ErrUnavailable, context.Cause(ctx)))
		}
	}
	if p.err != nil {
		return Receipt{}, p.err
	}
	return p.ack, nil
}

// wake has whoever waits look what has happened. Once too often does no harm.
func (p *Pending) wake() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// settle ends the publish.
func (p *Pending) settle(fault error) {
	p.settled = true
	p.bus.acks.release(p)
	p.bus.acks.signals.Put(p.signal)
	if fault != nil {
		p.err = p.wrap(fault)
	}
}

// answer says what the answer means.
func (p *Pending) answer(ctx context.Context) error {
	switch {
	case p.ackErr == nil && p.ack.Duplicate && len(p.batch) == 0:
		return p.duplicated(ctx)
	case p.ackErr == nil:
		return nil
	}
	fault := publishFault(p.ackErr)
	switch {
	case len(p.batch) > 0 && errors.Is(fault, ErrIncomplete):
		return p.explain(ctx, fault)
	case errors.Is(p.ackErr, jetstream.ErrNoStreamResponse):
		return p.bus.noStream(ctx, p.msg.Subject)
	}
	return fault
}

// notice ends a publish that n concerns, unless its answer is there as well:
// the notice may be about another message to the same subject.
func (p *Pending) notice(n *notice) {
	fault := p.fault(n)
	if fault == nil {
		return
	}
	if p.answered.Load() {
		if p.ackErr == nil {
			return
		}
		if answer := publishFault(p.ackErr); !errors.Is(answer, ErrIncomplete) {
			fault = answer
		}
	}
	p.settle(fault)
}

// fault says what a notice means for this publish, nil if nothing.
func (p *Pending) fault(n *notice) error {
	if err := n.fault(p.msg.Subject, deniedAcks); err != nil || len(p.batch) == 0 {
		return err
	}
	for _, m := range p.batch {
		if err := n.fault(m.Subject, deniedAcks); err != nil {
			return err
		}
	}
	return nil
}

// explain finds out why messages of a batch did not arrive: the notice that
// one of them is denied comes another way than the answer, and may be later.
func (p *Pending) explain(ctx context.Context, incomplete error) error {
	patience := time.NewTimer(noticeDelay)
	defer patience.Stop()
	for {
		select {
		case <-p.from.ready:
			if fault := p.fault(p.from); fault != nil {
				return fault
			}
			p.from = p.from.next
		case <-patience.C:
			return incomplete
		case <-ctx.Done():
			return incomplete
		}
	}
}

// noticeDelay is how much later than an answer a notice may come.
const noticeDelay = 50 * time.Millisecond

func (p *Pending) wrap(err error) error { return fmt.Errorf("bus: publish %s: %w", p.msg.Subject, err) }
