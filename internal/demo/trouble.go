package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// dose is how much trouble a run gets, beside the customers who make some.
type dose struct {
	crashes    int // of each service
	duplicates int // of 1,000 events
	poison     int // messages of each kind that no service can handle
	// flaky is the share of the gateway's tries that fail with a 5xx, or are
	// done and their answer is lost.
	flaky float64
	// outage is how long the gateway is down in the beginning.
	outage time.Duration
}

var doses = map[Faults]dose{
	None:  {},
	Some:  {crashes: 1, duplicates: 50, poison: 1, flaky: 0.05},
	Storm: {crashes: 3, duplicates: 250, poison: 5, flaky: 0.25, outage: 700 * time.Millisecond},
}

// duplicator publishes events again, in the two ways it happens: with the same
// message id while the server remembers it (a publisher that got no answer),
// and as another message, at once or long after (by whatever way it took).
type duplicator struct {
	bus      *bus.Bus
	perMille int
	random   *rand.Rand
	done     chan struct{} // closed when run has returned
	late     []event.Event // to be published again when all is done

	mu                sync.Mutex
	queue             chan event.Event // nil when nothing is taken any more
	injected, dropped int
}

func newDuplicator(b *bus.Bus, perMille, room int, random *rand.Rand) *duplicator {
	return &duplicator{bus: b, perMille: perMille, random: random, done: make(chan struct{}), queue: make(chan event.Event, room)}
}

// consumed says whether some service reacts to a type.
func consumed(t string) bool { return t != typeCancelled }

// offer lets the duplicator choose whether to repeat e. It does not block.
func (d *duplicator) offer(e event.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue == nil || !consumed(e.Type()) || d.random.IntN(1000) >= d.perMille {
		return
	}
	select {
	case d.queue <- e:
	default: // enough trouble
	}
}

// run repeats what was offered, until finish is called or ctx ends: a third of
// it by the same message, a third by another one at once, a third by another
// one when finish is called.
func (d *duplicator) run(ctx context.Context) error {
	defer close(d.done)
	d.mu.Lock()
	queue := d.queue
	d.mu.Unlock()
	for n := 0; ; n++ {
		select {
		case e, open := <-queue:
			if !open {
				return nil
			}
			var err error
			switch n % 3 {
			case 0:
				err = d.repeat(ctx, e)
			case 1:
				err = d.copy(ctx, e)
			default:
				d.late = append(d.late, e)
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// finish takes nothing more, and publishes the late copies: their events took
// effect long ago.
func (d *duplicator) finish(ctx context.Context) error {
	d.mu.Lock()
	close(d.queue)
	d.queue = nil
	d.mu.Unlock()
	<-d.done
	for _, e := range d.late {
		if err := d.copy(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// repeat publishes the same message again: the server should drop it.
func (d *duplicator) repeat(ctx context.Context, e event.Event) error {
	receipt, err := d.bus.Publish(ctx, e)
	if err != nil {
		return fmt.Errorf("demo: duplicate: %w", err)
	}
	d.count(receipt.Duplicate)
	return nil
}

// copy publishes the same event as another message: the server stores it, and
// the consumers' ledgers must see that it has taken effect.
func (d *duplicator) copy(ctx context.Context, e event.Event) error {
	m, err := d.bus.Message(e)
	if err != nil {
		return fmt.Errorf("demo: duplicate: %w", err)
	}
	m.Header.Del(nats.MsgIdHdr)
	if err := send(ctx, d.bus, m); err != nil {
		return fmt.Errorf("demo: duplicate: %w", err)
	}
	d.count(false)
	return nil
}

func (d *duplicator) count(dropped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.injected++
	if dropped {
		d.dropped++
	}
}

// counts returns how many duplicates were injected, and how many of them the
// server dropped.
func (d *duplicator) counts() (injected, dropped int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.injected, d.dropped
}

// send stores one message.
func send(ctx context.Context, b *bus.Bus, m *nats.Msg) error {
	pending, err := b.Send(ctx, m)
	if err != nil {
		return err
	}
	_, err = pending.Wait(ctx)
	return err
}

// poisonMessages are messages that no service will ever be able to handle:
// bytes that are no event, an event whose data is no order, and an order that
// cannot be. They are about no order that anybody placed.
func poisonMessages(b *bus.Bus, each int) ([]*nats.Msg, error) {
	var messages []*nats.Msg
	for i := range each {
		key := event.Key(fmt.Sprintf("poison-%d", i))
		messages = append(messages, &nats.Msg{
			Subject: b.Names().EventSubject(typePlaced, key),
			Header:  nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"%FF"}, "ce-type": {typePlaced}},
			Data:    []byte("\x00\xff\x1b[2Jnot an event"),
		})
		for _, data := range []string{
			`{"order_id": 7, "items": "none"}`, // does not fit
			`{}`,                               // fits, means nothing
		} {
			e, err := b.Seal(event.Draft{Type: typePlaced, Key: key, ContentType: event.ContentTypeJSON, Data: []byte(data)})
			if err != nil {
				return nil, fmt.Errorf("demo: poison: %w", err)
			}
			m, err := b.Message(e)
			if err != nil {
				return nil, fmt.Errorf("demo: poison: %w", err)
			}
			messages = append(messages, m)
		}
	}
	return messages, nil
}
