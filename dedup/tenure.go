package dedup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Tenure is one owner's time with one partition of a consumer: it begins with a
// fence, and ends with a farewell or with somebody else's fence. Only what its owner
// commits meanwhile counts. It is safe for concurrent use.
type Tenure struct {
	ledger    *Partitions
	consumer  event.Consumer
	partition int
	owner     string
	most      int    // events that the owner has under way at most
	subject   string // of its pages
	root      string // of its records' subjects

	lost chan struct{} // closed when the tenure is over

	// clock is the server's at the time began; see [Tenure.now].
	clock, began time.Time

	mu     sync.Mutex
	over   bool
	last   uint64 // sequence of the last page
	serial uint64 // of the last page
	window window
	ended  *index
	// types are up to where the events of each type were handled, and behind are those
	// of the owner's types that are behind the floor.
	types  typeFloors
	behind map[event.Type]uint64
	// stories are the records of events that have failed, or are parked.
	stories map[event.EventKey]entry
	// suspects are events that were running when an owner before died.
	suspects map[event.BinaryKey]struct{}
	running  map[event.EventKey]struct{}
	// careful is how many more events say that they start before they do, because
	// an owner before died in the midst of as many.
	careful int
	// doubtful says that a batch was not answered: before anything runs again it has
	// to be known whether it was stored.
	doubtful bool
	pages    []sighted // of the past, so that old ones can be removed
}

// sighted is a page and when it was stored.
type sighted struct {
	sequence uint64
	at       time.Time
}

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
			t.last, t.serial = receipt.Sequence, fence.serial
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

// now is the server's clock, without asking: this process's clock only tells how much
// time has passed.
func (t *Tenure) now() time.Time { return t.clock.Add(time.Since(t.began)) }

// sight notes a page for its removal: one in a while, all before go with it.
func (t *Tenure) sight(sequence uint64, at time.Time) {
	if n := len(t.pages); n == 0 || at.Sub(t.pages[n-1].at) > t.ledger.retention/slots {
		t.pages = append(t.pages, sighted{sequence, at})
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

// doubt notes what a commit has come to, or what had to be stored before it.
func (t *Tenure) doubt(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doubtful = errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrClosed) || t.doubtful && err != nil
}

// Partition is which one it is.
func (t *Tenure) Partition() int { return t.partition }

// Lost is closed when the partition is somebody else's, or may be.
func (t *Tenure) Lost() <-chan struct{} { return t.lost }

// Floor is the sequence up to which everything of the partition has ended.
func (t *Tenure) Floor() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.window.floor
}

// Careful reports whether events say that they start, because an owner before died.
func (t *Tenure) Careful() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.careful > 0 || len(t.suspects) > 0
}

// Running is how many events were handed out and have not ended.
func (t *Tenure) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.window.running()
}

// Enter takes in a message that the server has handed out, by its sequence. Messages
// come in order. It reports false for one that is under way, or has ended.
func (t *Tenure) Enter(sequence uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.over && t.window.enter(sequence)
}

// Behind are the event types of the owner whose events were not handled up to the
// floor, each with the sequence up to which they were: 0 for a type that is new.
// Messages after that and up to the floor enter by [Tenure.EnterBehind]; when all have
// ended, [Tenure.CatchUp] says so.
func (t *Tenure) Behind() map[event.Type]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.behind)
}

// Holds reports whether a message has entered and not ended.
func (t *Tenure) Holds(sequence uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.window.holds(sequence)
}

// EnterBehind takes in a message below the floor, as Enter does above it.
func (t *Tenure) EnterBehind(sequence uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.over && t.window.enterBehind(sequence)
}

// CatchUp makes it last that no type is behind any more. It reports false while
// messages that have entered behind the floor have not ended. Errors are those of
// [Partitions.Complete].
func (t *Tenure) CatchUp(ctx context.Context) (bool, error) {
	t.mu.Lock()
	if len(t.window.behind) > 0 {
		t.mu.Unlock()
		return false, nil
	}
	t.types = maps.Clone(t.types)
	for caught := range t.behind {
		t.types[caught] = atFloor
	}
	t.behind = nil
	t.mu.Unlock()
	_, err := t.ledger.marks.group.commit(ctx, newPageStep(t, kept{}))
	return err == nil, err
}

// Leave ends a message that nothing has to be remembered of. It is not stored at
// once: after a crash the message comes again.
func (t *Tenure) Leave(sequence uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.window.set(sequence, placeEnded)
	t.window.settle()
}

// Farewell ends the tenure: whoever takes the partition next knows that nothing ran
// any more. Call it when that is so. On a tenure that is lost it does nothing.
func (t *Tenure) Farewell(ctx context.Context) error {
	_, err := t.ledger.marks.group.commit(ctx, newPageStep(t, kept{farewell: true}))
	t.lose()
	if errors.Is(err, ErrLeaseLost) {
		return nil
	}
	return err
}

// Review ends the tenure if the last page is somebody else's, or if the stream no longer
// has the tenure's own last page, because it was purged or made anew: then there may be
// new events below what was read. The error matches [bus.ErrUnavailable] or [ErrNoStream].
func (t *Tenure) Review(ctx context.Context) error {
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	m, err := t.ledger.marks.latest(ctx, t.subject)
	if err != nil {
		return fmt.Errorf("dedup: review partition %d of %s: %w", t.partition, t.consumer, err)
	}
	if sequenceOf(m) < last || m.Header.Get(headerOwner) != t.owner {
		t.lose()
	}
	return nil
}

// lose ends the tenure without a word.
func (t *Tenure) lose() {
	t.mu.Lock()
	first := !t.over
	t.over = true
	t.mu.Unlock()
	if first {
		close(t.lost)
		t.ledger.mu.Lock()
		delete(t.ledger.tenures, t)
		t.ledger.mu.Unlock()
	}
}

func (t *Tenure) isLost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// kept is what a step says on the page of its partition.
type kept struct {
	key      event.BinaryKey
	sequence uint64 // of the message that ends, 0 for none
	ended    bool   // the event has ended: it is remembered
	starts   bool   // it is about to start
	farewell bool
	record   record // of the event's story, if the step has a mark
}

// turn is the next page of a tenure, and the steps of which it tells.
type turn struct {
	tenure *Tenure
	steps  []*step
	page   *nats.Msg
}

// turn makes what steps of this tenure say into its next page.
func (t *Tenure) turn(steps []*step) *nats.Msg {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := page{kind: pageCommit, owner: t.owner, serial: t.ledger.serial.Add(1), window: t.most, types: t.types}
	for _, s := range steps {
		switch k := s.kept; {
		case k.ended:
			p.ended = append(p.ended, k.key)
		case k.starts:
			p.starts = append(p.starts, k.key)
		case k.farewell:
			p.kind = pageFarewell
		}
		if s.kept.sequence > 0 {
			t.window.set(s.kept.sequence, placeEnding)
		}
	}
	p.floor = t.window.reached()
	t.serial = p.serial
	return p.message(t.subject, t.last)
}

// turnBack takes back what turn has done: the page was not stored.
func (t *Tenure) turnBack(steps []*step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range steps {
		if s.kept.sequence > 0 {
			t.window.set(s.kept.sequence, placeOpen)
		}
	}
}

// turned says that the page is stored, and at which sequence.
func (t *Tenure) turned(steps []*step, sequence uint64) {
	at := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = sequence
	t.sight(sequence, at)
	for _, s := range steps {
		if s.kept.ended {
			t.ended.add(digest(s.kept.key[:16]), at)
		}
		if s.mark != nil {
			t.stories[s.kept.key.Key()] = entry{revision: s.revision, record: s.kept.record, created: at}
		}
		if s.kept.sequence > 0 {
			t.window.set(s.kept.sequence, placeEnded)
		}
	}
	t.window.settle()
}

// tidy forgets what is older than the retention, and has the server forget it.
func (t *Tenure) tidy() {
	now := t.now()
	t.mu.Lock()
	t.ended.forget(now)
	n := 0
	for n < len(t.pages)-1 && now.Sub(t.pages[n+1].at) > t.ledger.retention {
		n++
	}
	for k, e := range t.stories {
		if !e.record.kept() && now.Sub(e.created) > t.ledger.retention {
			delete(t.stories, k)
		}
	}
	var below uint64
	if n > 0 {
		below = t.pages[n].sequence
		t.pages = t.pages[n:]
	}
	t.mu.Unlock()
	if below > 0 {
		t.ledger.marks.purge(purge{Filter: t.subject, Sequence: below})
	}
}

func newPageStep(t *Tenure, k kept) *step {
	s := newStep(nil, 0, nil)
	s.tenure, s.kept = t, k
	s.size = pageShare
	return s
}

// pageShare is about how many bytes a step takes on a page, its share of the page's
// headers included.
const pageShare = 64
