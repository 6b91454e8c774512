package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	// Begin is where the consumer began: nothing up to there is handled, of any type.
	Begin uint64
}

// takers is how many partitions are fenced at once.
const takers = 8

// Take makes a process the owner of partitions: nothing that an owner before it sends
// from now on is stored. It returns the tenures of those that it has taken, by partition,
// also with an error, which is of the others. Errors match [ErrNoStream], [ErrBadMark],
// [bus.ErrConflict] when others keep taking a partition, or are those of
// [bus.Bus.Latest] and [bus.Pending.Wait].
func (l *Partitions) Take(ctx context.Context, c event.Consumer, partitions []int, o Ownership) (map[int]*Tenure, error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	loads := map[int]*loading{}
	places := make(chan struct{}, takers)
	for _, n := range partitions {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			t := l.tenure(c, n, o)
			before, err := t.fence(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("dedup: take partition %d of %s: %w", n, c, err))
				return
			}
			loads[n] = &loading{Tenure: t, before: before, started: map[event.BinaryKey]uint64{}, told: map[event.EventKey]uint64{}}
		})
	}
	all.Wait()
	if err := l.load(ctx, c, loads); err != nil {
		return nil, errors.Join(append(errs, fmt.Errorf("dedup: take partitions of %s: %w", c, err))...)
	}
	taken := map[int]*Tenure{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, t := range loads {
		if t.err != nil {
			errs = append(errs, fmt.Errorf("dedup: take partition %d of %s: %w", n, c, t.err))
			continue
		}
		t.loaded()
		taken[n] = t.Tenure
		l.tenures[t.Tenure] = struct{}{}
	}
	return taken, errors.Join(errs...)
}

func (l *Partitions) tenure(c event.Consumer, partition int, o Ownership) *Tenure {
	t := &Tenure{
		ledger: l, consumer: c, partition: partition, owner: o.Owner, most: o.Window,
		root: fmt.Sprintf("%s%s.%d.", l.marks.prefix, c, partition),
		lost: make(chan struct{}), ended: newIndex(l.retention),
		stories: map[event.EventKey]entry{}, suspects: map[event.BinaryKey]struct{}{}, running: map[event.EventKey]struct{}{},
	}
	t.subject = t.root + pageSuffix[1:]
	return t
}

// fence writes the first page of the tenure, and returns the page before it.
func (t *Tenure) fence(ctx context.Context, o Ownership) (before page, err error) {
	marks := t.ledger.marks
	for range takeTries {
		m, err := marks.latest(ctx, t.subject)
		if err != nil {
			return page{}, err
		}
		before = page{floor: max(o.From, o.Begin), types: typeFloors{}}
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
				if at := max(t.types[handled], o.Begin); at < before.floor {
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

// loading is a tenure whose pages and records are read.
type loading struct {
	*Tenure
	before  page                       // the last one of the owner before
	started map[event.BinaryKey]uint64 // the page that says so
	told    map[event.EventKey]uint64  // the record that came after
	err     error                      // what cannot be read
}

// load reads the pages and records of partitions, up to their fences: a replica that has
// stored one has stored all before it. It reads them in one go: to find those of one
// partition the server looks at every message of the stream.
func (l *Partitions) load(ctx context.Context, c event.Consumer, loads map[int]*loading) error {
	if len(loads) == 0 {
		return nil
	}
	now, err := l.Now(ctx)
	if err != nil {
		return err
	}
	root, last := l.marks.prefix+string(c)+".", uint64(0)
	filter := root + "*.*"
	for _, t := range loads {
		t.clock, t.began = now, time.Now()
		last = max(last, t.last)
		if len(loads) == 1 {
			filter = t.root + "*"
		}
	}
	for next := uint64(1); next <= last; {
		messages, err := jetstreamext.GetBatch(ctx, l.marks.bus.JetStream(), l.marks.stream, loadBatch,
			jetstreamext.GetBatchSubject(filter), jetstreamext.GetBatchSeq(next))
		if err != nil {
			return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
		}
		before := next
		for m, merr := range messages {
			if err = merr; err != nil {
				break
			}
			next = m.Sequence + 1
			partition, _, _ := strings.Cut(m.Subject[len(root):], ".")
			if n, err := strconv.Atoi(partition); err == nil && loads[n] != nil {
				loads[n].take(m, now)
			}
		}
		if next > before {
			continue // also if the server was too slow for all of them
		}
		if err != nil && !errors.Is(err, jetstreamext.ErrNoMessages) {
			return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", bus.ErrUnavailable, context.Cause(ctx))
		case <-time.After(loadRetry):
		}
	}
	return nil
}

// take takes in one message from before the fence.
func (t *loading) take(m *jetstream.RawStreamMsg, now time.Time) {
	if m.Sequence >= t.last || t.err != nil {
		return
	}
	if m.Subject != t.subject {
		t.err = t.tell(m, t.told)
		return
	}
	var p page
	if p, t.err = pageOf(m); t.err == nil {
		t.read(m, p, now, t.started)
	}
}

// loaded is called when all of it is read.
func (t *loading) loaded() {
	t.pages = append(t.pages, sighted{t.last, t.clock})
	if t.before.kind == "" || t.before.kind == pageFarewell {
		return
	}
	t.careful = t.before.window
	for k, page := range t.started {
		if t.told[k.Key()] < page && !t.ended.has(digest(k[:16])) {
			t.suspects[k] = struct{}{}
		}
	}
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
