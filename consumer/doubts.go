package consumer

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// outages are errors that no event is to be blamed for, besides those of
// [bus.IsOutage]. Whatever else keeps a step from being stored is the event's own
// fault and spends an attempt.
var outages = []error{
	bus.ErrNoStream, bus.ErrIncomplete, bus.ErrBusy,
	bus.ErrDenied, bus.ErrStreamFull, bus.ErrClosed, dedup.ErrNoBucket, dedup.ErrNoStream,
}

// certain are those of which the server has said that they concern more than one
// event: they last until a person does something. The others are silence, which
// one event can also meet alone.
var certain = []error{
	bus.ErrDenied, bus.ErrStreamFull, bus.ErrClosed, dedup.ErrNoBucket, dedup.ErrNoStream, ErrNoTimers,
	dedup.ErrHalfStored, state.ErrLost,
}

// amiss are those of which only some events hear: others that get through do not
// say that it is over.
var amiss = []error{dedup.ErrHalfStored, state.ErrLost}

// isOutage reports an outage. The server has one code for all that its store
// says, also that the message is too large.
func isOutage(err error) bool {
	return !errors.Is(err, bus.ErrTooLarge) && (bus.IsOutage(err) || matches(err, outages))
}

func matches(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// maxAlone is how often an event meets an outage that nobody else meets, until
// each further time spends an attempt.
const maxAlone = 10

// doubts tell trouble with one event from an outage: during an outage nothing
// gets through of what needs the same. They belong to one process; a replica
// that gets the event has its own.
type doubts struct {
	fade time.Duration // an event that has not failed here for so long is elsewhere, or through
	any  atomic.Bool   // so that getting through costs nothing while all is well

	mu      sync.Mutex
	through map[string]int // how often something got through, by what it needed
	by      map[event.EventKey]*doubt
}

// doubt is about one event.
type doubt struct {
	needs []string
	seen  []int // what had got through at its last failure, by need
	alone int   // failures since the last of which others got through
	at    time.Time
}

// needsOf is what an event needs: the ledger; its handler; and streams, by the
// roots of the subjects to which its step goes, as in "order.placed.v1 timer".
func needsOf(n event.Names, eventType string, out []*nats.Msg) []string {
	needs := []string{""}
	if eventType != "" {
		needs = append(needs, eventType)
	}
	for _, m := range out {
		root, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, n.Root("")), ".")
		if need := eventType + " " + root; !slices.Contains(needs, need) {
			needs = append(needs, need)
		}
	}
	return needs
}

// fail notes that an event has met an outage. It returns how often it did so
// while others got through, and whether they have since its last failure.
func (x *doubts) fail(key event.EventKey, needs []string, now time.Time) (alone int, others bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil {
		x.by, x.through = map[event.EventKey]*doubt{}, map[string]int{}
	}
	seen := make([]int, len(needs))
	for i, need := range needs {
		seen[i] = x.through[need]
	}
	d := x.by[key]
	switch {
	case d == nil || !slices.Equal(d.needs, needs):
		d = &doubt{needs: needs, seen: seen}
		x.by[key] = d
		x.any.Store(true)
	default:
		others = true
		for i := range seen {
			others = others && seen[i] > d.seen[i]
		}
		if others {
			d.seen = seen
			d.alone++
		}
	}
	d.at = now
	return d.alone, others
}

// pass notes that an event got through.
func (x *doubts) pass(key event.EventKey, needs func() []string) {
	if !x.any.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(key)
	for _, need := range needs() {
		x.through[need]++
	}
}

// forget ends the doubt about an event, which has come to its end.
func (x *doubts) forget(key event.EventKey) {
	if !x.any.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(key)
}

// sweep forgets events that have gone elsewhere.
func (x *doubts) sweep(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, d := range x.by {
		if now.Sub(d.at) > x.fade {
			x.drop(key)
		}
	}
}

// drop ends the doubt about an event. The caller holds x.mu.
func (x *doubts) drop(key event.EventKey) {
	delete(x.by, key)
	if len(x.by) == 0 {
		clear(x.through)
		x.any.Store(false)
	}
}

// size is how many events are alone in their trouble.
func (x *doubts) size() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, d := range x.by {
		if d.alone > 0 {
			n++
		}
	}
	return n
}
