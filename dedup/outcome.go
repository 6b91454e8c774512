package dedup

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Complete makes out, the documents among it and the end of the event durable, all or
// nothing. What belongs to another stream, timers that are set, is stored before.
// Errors match [ErrLeaseLost], [ErrStale], or are those of [bus.Bus.SendBatch] and
// [bus.Pending.Wait]. After an error the claim is still held.
func (l *Partitions) Complete(ctx context.Context, c *Claim, out []*nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.end(ctx, c, "complete", stateDone, c.record.done(), kept{ended: true, sequence: c.Request.Sequence}, out)
}

// Release gives the event back; it can be claimed again at once. With a failure the
// attempt is recorded. With later, a message that brings the event back, which is
// stored first, this delivery of it has ended. Errors are those of Complete. After
// one the event can be claimed again all the same: its claim finds out what is stored.
func (l *Partitions) Release(ctx context.Context, c *Claim, failure *event.Attempt, later *nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Status == Claimed && c.record.State == stateClaimed {
		defer c.Request.Tenure.leave(c)
	}
	next := c.record.failed(failure).ended(stateWaiting)
	if later == nil {
		return l.end(ctx, c, "release", stateWaiting, next, kept{}, nil)
	}
	if err := publish(ctx, l.marks.bus, []*nats.Msg{later}); err != nil {
		return fmt.Errorf("dedup: release %s.%s: %w", c.Request.Consumer, c.Request.Key, err)
	}
	return l.end(ctx, c, "release", stateWaiting, next, kept{sequence: c.Request.Sequence}, nil)
}

// Park makes the letter durable and then the record of the parked event, which has no
// end but a newer replay or Discard. An owner that has lost the partition finds out
// before it sends the letter. Errors are those of Complete.
func (l *Partitions) Park(ctx context.Context, c *Claim, failure *event.Attempt, letter *nats.Msg) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Status == Claimed && c.record.State == stateClaimed {
		err := l.marks.group.commit(ctx, newStep(c.Request.Tenure, kept{}, nil))
		if err == nil {
			err = publish(ctx, l.marks.bus, []*nats.Msg{letter})
		}
		if err != nil {
			return fmt.Errorf("dedup: park %s.%s: %w", c.Request.Consumer, c.Request.Key, err)
		}
	}
	return l.end(ctx, c, "park", stateParked, c.record.failed(failure).ended(stateParked), kept{sequence: c.Request.Sequence}, nil)
}

// end writes how a claim has ended. The caller holds c.mu.
func (l *Partitions) end(ctx context.Context, c *Claim, verb string, s state, next record, what kept, out []*nats.Msg) error {
	switch {
	case c.Status != Claimed:
		return fmt.Errorf("dedup: %s %s.%s: %w: the claim was answered %s", verb, c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.Status)
	case c.record.State == s:
		return nil // again
	case c.record.State != stateClaimed:
		return fmt.Errorf("dedup: %s %s.%s: %w: the claim has ended, %s", verb, c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.record.State)
	}
	what.key, what.record = c.binary, next
	if err := l.settle(ctx, c, what, out); err != nil {
		if errors.Is(err, ErrLeaseLost) {
			c.Request.Tenure.leave(c)
		}
		return fmt.Errorf("dedup: %s %s.%s: %w", verb, c.Request.Consumer, c.Request.Key, err)
	}
	c.Request.Tenure.leave(c)
	return nil
}

// settle commits a step of a claim, and replaces the event's record if it has a story.
// When a person has changed the record meanwhile, the step follows that.
func (l *Partitions) settle(ctx context.Context, c *Claim, what kept, out []*nats.Msg) error {
	t, next := c.Request.Tenure, what.record
	storied := next.State != stateDone && (!next.blank() || c.started || next.Crashes > 0) || c.revision > 0
	if !storied && len(out) == 0 && what.sequence == 0 && !what.ended && !what.starts {
		return l.released(c, next)
	}
	set, rest, cancelled := apart(l.marks.bus.Names(), out)
	if err := publish(ctx, l.marks.bus, set); err != nil {
		t.doubt(err)
		return err
	}
	for range claimTries {
		s := newStep(t, what, rest)
		if storied {
			if err := s.tell(c); err != nil {
				return err
			}
		}
		err := l.marks.group.commit(ctx, s)
		t.doubt(unplaced(err))
		if errors.Is(err, errConflict) && storied {
			if c.revision, err = t.refresh(ctx, c.Request.Key, s.mark.Subject); err == nil {
				continue
			}
		}
		if err != nil {
			return l.marks.missing(unplaced(err))
		}
		if storied {
			c.revision = s.revision
		}
		c.record = next
		l.marks.cancel(ctx, cancelled)
		return nil
	}
	return fmt.Errorf("%w: the record keeps moving", bus.ErrUnavailable)
}

// unplaced makes an outage of a conflict that is not explained: the page, or the
// record, was not stored, and the replica that was asked for the reason lags behind.
func unplaced(err error) error {
	if errors.Is(err, errConflict) {
		return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
	}
	return err
}

func (l *Partitions) released(c *Claim, next record) error {
	if c.Request.Tenure.isLost() {
		return fmt.Errorf("%w: partition %d is another owner's", ErrLeaseLost, c.Request.Tenure.partition)
	}
	c.record = next
	return nil
}

// refresh reads a record that a person has changed.
func (t *Tenure) refresh(ctx context.Context, k event.EventKey, subject string) (uint64, error) {
	m, err := t.ledger.marks.latest(ctx, subject)
	if err != nil {
		return 0, err
	}
	e, err := entryOf(m)
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stories[k] = e
	return e.revision, nil
}
