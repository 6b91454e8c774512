package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/outbox"
)

// confirm returns nil when err stands, and else why it does not count: the
// handler made it of documents that are not committed, or are no longer current.
// That error matches [dedup.ErrStale], and the handler has to run again.
func (c *Consumer) confirm(ctx context.Context, r run, err error) error {
	if _, unattempted := notYetOf(err); context.Cause(ctx) != nil || isOutage(err) || unattempted {
		return nil //nolint:nilerr // it stands: it is not the event's fault in any case
	}
	return r.reads.Confirm(context.WithoutCancel(ctx), c.ledger)
}

// incomplete ends the journey of an event whose step could not be made durable.
// late is why the handler was cancelled, if it was, although it has succeeded.
func (c *Consumer) incomplete(ctx context.Context, d *delivery, claim *dedup.Claim, out []*nats.Msg, late, err error) result {
	lasting := context.WithoutCancel(ctx)
	if end, over := c.outrun(d, err); over {
		return end
	}
	switch {
	case errors.Is(err, dedup.ErrStale):
		return c.contend(lasting, d, claim, err)
	case c.astray(lasting, out, err):
		return c.spend(lasting, d, claim, err)
	case isOutage(err):
		return c.failClosed(lasting, d, claim, partPublish, out, err)
	case late != nil && errors.Is(err, outbox.ErrTransaction):
		err = fmt.Errorf("%w: %w", late, err)
	case errors.Is(err, bus.ErrTooLarge), errors.Is(err, event.ErrInvalidEvent):
		err = Permanent(err) // what it emits can never be stored
	}
	return c.fail(ctx, d, claim, err)
}

// astray reports whether a step met no stream because one of its messages has a
// subject that no stream stores, while the event stream is there.
func (c *Consumer) astray(ctx context.Context, out []*nats.Msg, err error) bool {
	if !errors.Is(err, bus.ErrNoStream) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
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

// contend gives an event back whose state others have changed in each of many
// runs: at first no attempt is spent, and the delay grows; later it is a failure
// like any other.
func (c *Consumer) contend(ctx context.Context, d *delivery, claim *dedup.Claim, err error) result {
	n := c.contention.add(d.key)
	err = fmt.Errorf("%d rounds of %d runs: %w", n, maxRuns, err)
	if n >= shownRounds {
		c.health.Set(partState, err)
		c.eventLog(d, c.log.Warn()).Err(err).Msg("state keeps changing, will run again")
	}
	if n > freeRounds {
		return c.fail(ctx, d, claim, err)
	}
	delay := backoff.Around(staleRetry << n)
	return c.release(ctx, d, claim, nil, released, delay)
}

const (
	// shownRounds is from how many rounds on the consumer is not healthy.
	shownRounds = 2
	// freeRounds is after how many rounds each further one is a failed attempt.
	freeRounds = 4
	// maxContending bounds how many events are counted: those that have gone to
	// another process are never heard of again.
	maxContending = 4096
)

// contention counts the rounds, of [maxRuns] runs each, in which an event found its
// state changed every time. Where many write the same documents that happens, and
// costs no attempt. But an event that never gets through must not loop for ever.
type contention struct {
	mu     sync.Mutex
	rounds map[event.EventKey]int
}

// add counts one more round of an event.
func (x *contention) add(k event.EventKey) int {
	x.note(k)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rounds[k]++
	return x.rounds[k]
}

// note has an event known whose state is amiss, without counting.
func (x *contention) note(k event.EventKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rounds == nil || len(x.rounds) >= maxContending {
		x.rounds = map[event.EventKey]int{}
	}
	x.rounds[k] += 0
}

// forget ends the count of an event. It reports whether it was the last one.
func (x *contention) forget(k event.EventKey) (last bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.rounds) == 0 {
		return false
	}
	delete(x.rounds, k)
	return len(x.rounds) == 0
}

// calm forgets an event that has come to its end.
func (c *Consumer) calm(d *delivery, r result) {
	switch r.outcome {
	case handled, skipped, duplicate, parked:
		if c.contention.forget(d.key) {
			c.health.Clear(partState)
		}
	case busy, retried, released, lost, dropped, outcomes: // it comes again, or ends elsewhere
	}
}
