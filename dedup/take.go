package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// takeTries is how often a fence is tried against others who write pages.
const takeTries = 16

// Ownership is who takes a partition, and what for.
type Ownership struct {
	// Owner is the id of the process, as in "4hq2xkz7ma".
	Owner string
	// Window is how many events the owner has under way at most, over all partitions.
	Window int
	// Types are the event types that it handles.
	Types []event.Type
	// From is the floor of a partition that never had an owner, for the types Known:
	// they were handled up to there before the consumer had this ledger.
	From  uint64
	Known []event.Type
}

// Take makes a process the owner of a partition: nothing that an owner before it sends
// from now on is stored. Errors match [ErrNoStream], [ErrBadMark], [bus.ErrConflict] when others
// keep taking the partition, or are those of [bus.Bus.Latest] and [bus.Pending.Wait].
func (l *Partitions) Take(ctx context.Context, c event.Consumer, partition int, o Ownership) (*Tenure, error) {
	t := &Tenure{
		ledger: l, consumer: c, partition: partition, owner: o.Owner, most: o.Window,
		root: fmt.Sprintf("%s%s.%d.", l.marks.prefix, c, partition),
		lost: make(chan struct{}), ended: newIndex(l.retention),
		stories: map[event.EventKey]entry{}, suspects: map[event.BinaryKey]struct{}{}, running: map[event.EventKey]struct{}{},
	}
	t.subject = t.root + pageSuffix[1:]
	before, err := t.fence(ctx, o)
	if err == nil {
		err = t.load(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("dedup: take partition %d of %s: %w", partition, c, err)
	}
	if before.kind == "" || before.kind == pageFarewell {
		clear(t.suspects)
	} else {
		t.careful = before.window
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenures[t] = struct{}{}
	return t, nil
}

// fence writes the first page of the tenure, and returns the page before it.
func (t *Tenure) fence(ctx context.Context, o Ownership) (before page, err error) {
	marks := t.ledger.marks
	for range takeTries {
		m, err := marks.latest(ctx, t.subject)
		if err != nil {
			return page{}, err
		}
		before = page{floor: o.From, types: typeFloors{}}
		if m != nil {
			if before, err = pageOf(m); err != nil {
				return page{}, err
			}
		}
		for _, known := range o.Types {
			if m == nil && (o.From == 0 || slices.Contains(o.Known, known)) {
				before.types[known] = atFloor
			}
		}
		fence := page{kind: pageFence, owner: t.owner, serial: t.ledger.serial.Add(1), floor: before.floor, window: t.most, types: before.types.of(o.Types, before.floor)}
		pending, err := marks.bus.Send(ctx, fence.message(t.subject, sequenceOf(m)))
		if err != nil {
			return page{}, err
		}
		receipt, err := pending.Wait(ctx)
		switch {
		case err == nil:
			t.last = receipt.Sequence
			t.window.floor = before.floor
			t.types, t.behind = fence.types, map[event.Type]uint64{}
			for _, handled := range o.Types {
				if at := t.types[handled]; at < before.floor {
					t.behind[handled] = at
				}
			}
			return before, nil
		case !errors.Is(err, bus.ErrConflict):
			return page{}, marks.missing(err)
		}
	}
	return page{}, fmt.Errorf("%w: others keep taking it", bus.ErrConflict)
}

const (
	// loadBatch is how many pages and records are asked for at once.
	loadBatch = 1000
	// loadRetry is how long to wait for a replica that lags behind.
	loadRetry = 20 * time.Millisecond
)

// load reads the pages and records of the partition, up to the fence: a replica that
// has stored it has stored all before it.
func (t *Tenure) load(ctx context.Context) error {
	started := map[event.BinaryKey]uint64{} // the page that says so
	told := map[event.EventKey]uint64{}     // the record that came after
	now, err := t.ledger.Now(ctx)
	if err != nil {
		return err
	}
	t.clock, t.began = now, time.Now()
	next := uint64(1)
	for next <= t.last {
		messages, err := jetstreamext.GetBatch(ctx, t.ledger.marks.bus.JetStream(), t.ledger.marks.stream, loadBatch,
			jetstreamext.GetBatchSubject(t.root+"*"), jetstreamext.GetBatchSeq(next))
		if err != nil {
			return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
		}
		before := next
		for m, merr := range messages {
			if err = merr; err != nil {
				break
			}
			next = m.Sequence + 1
			if m.Subject != t.subject {
				if err = t.tell(m, told); err != nil {
					return err
				}
				continue
			}
			p, err := pageOf(m)
			if err != nil {
				return err
			}
			if m.Sequence == t.last {
				break
			}
			t.read(m, p, now, started)
		}
		if err != nil && !errors.Is(err, jetstreamext.ErrNoMessages) {
			return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
		}
		if next == before {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", bus.ErrUnavailable, context.Cause(ctx))
			case <-time.After(loadRetry):
			}
		}
	}
	t.pages = append(t.pages, sighted{t.last, now})
	for k, page := range started {
		if told[k.Key()] < page && !t.ended.has(digest(k[:16])) {
			t.suspects[k] = struct{}{}
		}
	}
	return nil
}

// read takes in what a page says.
func (t *Tenure) read(m *jetstream.RawStreamMsg, p page, now time.Time, started map[event.BinaryKey]uint64) {
	t.window.floor = max(t.window.floor, p.floor)
	if p.kind == pageFarewell {
		clear(started)
	}
	if p.owner != t.owner { // who takes its own partition again, after an outage, has not crashed
		for _, k := range p.starts {
			started[k] = m.Sequence
		}
	}
	if now.Sub(m.Time) > t.ledger.retention {
		return
	}
	t.sight(m.Sequence, m.Time)
	for _, k := range p.ended {
		t.ended.add(digest(k[:16]), m.Time)
	}
}

// tell takes in a record.
func (t *Tenure) tell(m *jetstream.RawStreamMsg, told map[event.EventKey]uint64) error {
	k := event.EventKey(m.Subject[len(t.root):])
	e, err := entryOf(m)
	if err != nil {
		return err
	}
	t.stories[k], told[k] = e, m.Sequence
	return nil
}
