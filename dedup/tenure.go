package dedup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

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

// Page is the sequence of the last page.
func (t *Tenure) Page() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
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
	err := t.ledger.marks.group.commit(ctx, newStep(t, kept{}, nil))
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
	err := t.ledger.marks.group.commit(ctx, newStep(t, kept{farewell: true}, nil))
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
	last := t.Page()
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

// now is the server's clock, without asking: this process's clock only tells how much
// time has passed.
func (t *Tenure) now() time.Time { return t.clock.Add(time.Since(t.began)) }
