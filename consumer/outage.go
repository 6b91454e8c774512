package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/state"
)

// outages are errors that are no event's fault, besides those of [bus.IsOutage].
// Any other error of a step is its event's fault and spends an attempt.
var outages = []error{
	bus.ErrNoStream, bus.ErrIncomplete, bus.ErrBusy,
	bus.ErrDenied, bus.ErrStreamFull, bus.ErrClosed, dedup.ErrNoBucket, dedup.ErrNoStream,
}

// certain are outages that concern every event, as the server has said: they last
// until a person does something. The others are silence, which one event can also
// meet alone.
var certain = []error{
	bus.ErrDenied, bus.ErrStreamFull, bus.ErrClosed, dedup.ErrNoBucket, dedup.ErrNoStream, ErrNoTimers,
	dedup.ErrHalfStored, state.ErrLost,
}

// amiss are outages that only some events meet: that others get through does not
// show that it is over.
var amiss = []error{dedup.ErrHalfStored, state.ErrLost}

// isOutage reports an outage. The server has one code for all that its store
// says, also that the message is too large.
func isOutage(err error) bool {
	return !errors.Is(err, bus.ErrTooLarge) && (bus.IsOutage(err) || matches(err, outages))
}

func matches(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// failClosed gives an event back, its attempt unspent, because something that the
// journey stands on is missing. The consumer is unhealthy until it works again.
//
// But something that other events get meanwhile is not missing. Then the event is
// alone in its trouble: nobody is unhealthy because of it, and after [maxAlone]
// times it spends attempts.
func (c *Consumer) failClosed(ctx context.Context, d *delivery, claim *dedup.Claim, part string, out []*nats.Msg, err error) result {
	delay := backoff.Around(closedRetry)
	alone, others := 0, false
	if matches(err, amiss) {
		part = partState
		c.contention.note(d.key)
	}
	if !matches(err, certain) {
		alone, others = c.doubts.fail(d.key, needsOf(c.bus.Names(), d.eventType, out), time.Now())
	}
	switch {
	case !others:
		c.health.Set(part, err)
	case alone > maxAlone && claim != nil:
		return c.spend(ctx, d, claim, fmt.Errorf("%w: %w", errAlone, err))
	default:
		delay = backoff.FullJitter(c.cfg.Retry.BaseDelay, c.cfg.Retry.MaxDelay, alone, rand.Float64()) //nolint:gosec // jitter
	}
	c.eventLog(d, c.log.Error()).Err(err).Str("part", part).Int("alone", alone).Msg("event given back")
	if claim == nil {
		return c.giveBack(d, released, delay)
	}
	return c.release(ctx, d, claim, nil, released, delay)
}

// passed notes that an event got through: nothing that it needed is missing.
func (c *Consumer) passed(d *delivery, out []*nats.Msg) {
	c.health.Clear(partPublish)
	c.health.Clear(partHandler)
	c.doubts.pass(d.key, func() []string { return needsOf(c.bus.Names(), d.eventType, out) })
}

// maxAlone is how often an event meets an outage that nobody else meets, until
// each further time spends an attempt.
const maxAlone = 10

// doubts tell trouble with one event from an outage: during an outage nothing gets
// through that needs the same. Each process has its own doubts; a replica that
// gets the event starts anew.
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

// pass notes that an event got through, and what it needed.
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

// forget ends the doubt about an event, which has come to its end in another way.
func (x *doubts) forget(key event.EventKey) { x.pass(key, func() []string { return nil }) }

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
