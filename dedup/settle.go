package dedup

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Extend renews the lease from now on, by the store's clock. On a claim that
// has ended it does nothing. Errors match [ErrLeaseLost], or those of
// [bus.Pending.Wait]; after the latter the lease may or may not be renewed.
func (e *engine) Extend(ctx context.Context, c *Claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A heartbeat that comes after the outcome repeats the outcome: nothing.
	return e.settle(ctx, c, "extend", c.record, nil)
}

// Complete makes out durable and then the done mark, which lasts for the
// retention. A worker that was stalled for most of its lease renews it before
// it emits anything. Completing again, also after an error, is safe: out
// repeats with the same message ids, and a done mark that was stored is recognised.
//
// Errors match [ErrLeaseLost], or are those of [bus.Bus.Send] and
// [bus.Pending.Wait] for a message of out or the mark. After an error some of
// out may be stored, and the claim is still held.
func (e *engine) Complete(ctx context.Context, c *Claim, out []*nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.settle(ctx, c, "complete", c.record.done(), out)
}

// Release gives the event back; it can be claimed at once. The failure joins
// the mark's history, its text cut to 1 KiB; nil spends no attempt. Errors are
// those of Extend. After an error this ledger takes the event up again without
// counting a crash; other workers have to wait for the end of the lease.
// later, if there is one, may then be stored or not.
func (e *engine) Release(ctx context.Context, c *Claim, failure *event.Attempt, later *nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*nats.Msg
	if later != nil {
		out = []*nats.Msg{later}
	}
	err := e.settle(ctx, c, "release", c.record.failed(failure).ended(stateWaiting), out)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		e.live.lose(c.key, c.record.By)
	}
	return err
}

// Park makes the letter durable and then the parked mark, which has no end but
// a newer replay or Discard. If the letter cannot be stored, nothing is
// recorded and the claim is still held. A worker that was stalled for most of
// its lease renews it first. Errors are those of Complete.
func (e *engine) Park(ctx context.Context, c *Claim, failure *event.Attempt, letter *nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.settle(ctx, c, "park", c.record.failed(failure).ended(stateParked), []*nats.Msg{letter})
}

// settle writes next over the claim's mark. The caller holds c.mu.
func (e *engine) settle(ctx context.Context, c *Claim, verb string, next record, out []*nats.Msg) error {
	if c.Status != Claimed {
		return fmt.Errorf("dedup: %s %s.%s: %w: the claim was answered %s", verb, c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.Status)
	}
	if c.record.State != stateClaimed {
		if c.record.State == next.State {
			return nil // again
		}
		return fmt.Errorf("dedup: %s %s: %w: the claim has ended, %s", verb, c.key, ErrLeaseLost, c.record.State)
	}
	err := e.surface(ctx, c, next, out)
	switch {
	case err != nil:
	case c.revision == 0 && len(out) == 0 && next.blank():
		c.record, c.renewed = next, e.clock() // there is nothing to say of an event nobody has heard of
	default:
		err = e.write(ctx, c, next, out)
	}
	switch {
	case err == nil && c.record.State == stateClaimed:
		e.live.renew(c.key, c.record.By, c.renewed.Add(c.record.lease()))
	case err == nil, errors.Is(err, ErrLeaseLost), errors.Is(err, ErrSettled):
		e.live.drop(c.key, c.record.By)
	}
	if err != nil {
		return fmt.Errorf("dedup: %s %s: %w", verb, c.key, err)
	}
	return nil
}

// surface lets a worker find out that it was overtaken before it emits: one
// that was stalled (a stopped process, a long pause), and one without a claim
// whose letter no batch can hold back. What is stored together with its mark
// finds out by itself.
func (e *engine) surface(ctx context.Context, c *Claim, next record, out []*nats.Msg) error {
	if e.atomic && next.State == stateDone {
		return nil
	}
	stalled := e.clock().Sub(c.renewed) > c.record.lease()*2/3
	if c.revision == 0 {
		stalled = next.State == stateParked
	}
	if len(out) == 0 || !stalled {
		return nil
	}
	return e.write(ctx, c, c.record, nil)
}

// write replaces the claim's mark by next, after out. On a conflict the mark
// decides: an earlier write of this same claim, whose acknowledgement got
// lost, is taken up; anything else in its place means that the lease is lost.
func (e *engine) write(ctx context.Context, c *Claim, next record, out []*nats.Msg) error {
	for range claimTries {
		sent := e.clock()
		revision, err := e.store.write(ctx, c, c.key, c.revision, next, out)
		if err == nil {
			c.revision, c.record, c.renewed = revision, next, sent
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		found, err := e.store.read(ctx, c.key)
		switch {
		case err != nil:
			return err
		case found.revision <= c.revision:
			// Read from a replica that has not seen the write we collided with.
			return fmt.Errorf("%w: the mark's latest write cannot be read yet", bus.ErrUnavailable)
		case found.record.By != c.record.By && c.revision == 0 && found.record.final():
			return fmt.Errorf("%w: %s", ErrSettled, found.record.State)
		case found.record.By != c.record.By:
			return ErrLeaseLost
		case found.record.State == stateClaimed:
			c.revision = found.revision // a renewal; write again after it
		case found.record.State == next.State:
			c.revision, c.record = found.revision, found.record
			return nil
		default:
			return fmt.Errorf("%w: the claim has ended, %s", ErrLeaseLost, found.record.State)
		}
	}
	return fmt.Errorf("%w: the mark keeps moving", bus.ErrUnavailable)
}
