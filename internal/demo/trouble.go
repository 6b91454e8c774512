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

// dose is how many faults are injected. Some customers cause more of their own
// ([shares]).
type dose struct {
	replicas   int // of each service
	crashes    int // how often each process is killed
	duplicates int // how many of 1,000 events are repeated
	poison     int // how many messages of each kind of [poisonMessages] are stored
	// flaky is the share of requests to the gateway that fail: with a 5xx, or because
	// the answer is lost.
	flaky float64
	// outage is how long the gateway is down, once so large a share of the orders has ended.
	outage      time.Duration
	outageAfter float64
}

var doses = map[Faults]dose{
	None:   {replicas: 1},
	Some:   {replicas: 1, crashes: 1, duplicates: 50, poison: 1, flaky: 0.05},
	Outage: {replicas: 2, outage: 5 * time.Second, outageAfter: 0.25},
	Storm:  {replicas: 2, crashes: 3, duplicates: 250, poison: 5, flaky: 0.2, outage: 3 * time.Second},
}

// duplicator publishes events a second time, in the two ways in which that happens:
// with the same message id, as a publisher does that got no answer, and as a message
// with no id, at once or much later.
type duplicator struct {
	bus      *bus.Bus
	perMille int
	random   *rand.Rand
	done     chan struct{} // closed when run has returned
	late     []event.Event // to be published again by finish

	mu                sync.Mutex
	queue             chan event.Event // nil after finish
	injected, dropped int
}

func newDuplicator(b *bus.Bus, perMille, room int, random *rand.Rand) *duplicator {
	return &duplicator{bus: b, perMille: perMille, random: random, done: make(chan struct{}), queue: make(chan event.Event, room)}
}

// consumed says whether some service reacts to a type.
func consumed(t string) bool { return t != typeCancelled && !isBreaker(t) }

// offer gives e to the duplicator, which repeats some of the events. It does not block.
func (d *duplicator) offer(e event.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue == nil || !consumed(e.Type()) || d.random.IntN(1000) >= d.perMille {
		return
	}
	select {
	case d.queue <- e:
	default: // the queue is full: it has enough to repeat
	}
}

// run repeats events until finish is called or ctx ends: a third of them with the
// same message id, a third as another message at once, and a third as another
// message when finish is called.
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

// finish ends run and publishes the late copies, of events that took effect long
// ago.
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

// repeat publishes an event with the same message id: the server should drop it.
func (d *duplicator) repeat(ctx context.Context, e event.Event) error {
	receipt, err := d.bus.Publish(ctx, e)
	if err != nil {
		return fmt.Errorf("demo: duplicate: %w", err)
	}
	d.count(receipt.Duplicate)
	return nil
}

// copy publishes an event without a message id. The server stores it, and the
// consumers' ledgers must find that it has taken effect.
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

// poisonKinds is of how many kinds they are.
const poisonKinds = 3

// poisonMessages returns messages that no service can ever handle: bytes that are not
// an event, an event whose data is not an order, and an order without any content.
// No customer has placed any of these orders.
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
			`{"order_id": 7, "items": "none"}`, // the members have other types
			`{}`,                               // an order without content
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
