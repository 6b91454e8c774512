package consumer

import (
	"slices"
	"sync"
	"time"
)

// holdSlack is how long a retried event still blocks its key after it was due. The
// server can be late. An event that is later than this went to another replica.
const holdSlack = 2 * time.Second

// holdStep is the pause between an event's retry and the events of its key that
// were given back meanwhile. It is also how soon they come again while the
// retry is late.
const holdStep = 50 * time.Millisecond

// lanes keeps the events of one key in order within this process. They run one
// after another. An event that waits for its retry blocks its own key and no other.
// Each delivery enters with [lanes.enter]. Whoever has run one calls
// [lanes.leave], which returns the next to run.
type lanes struct {
	// placesPerKey is how many queued deliveries of one key count against InFlight.
	// Those behind them do not: they will not run soon, and would keep the process
	// from pulling events of other keys, for which workers are free.
	placesPerKey int

	mu    sync.Mutex
	byKey map[string]*lane
	spare []*lane // empty ones, to be used again
}

// lane is the queue of one key. It exists while an event of the key is running,
// queued or waiting for its redelivery.
type lane struct {
	running *delivery
	stuck   bool        // the running handler ignores its cancellation
	queue   []*delivery // in stream order
	// waiting holds the deliveries that were given back, by stream sequence.
	waiting map[uint64]wait
}

// wait says when a delivery that was given back is due again.
type wait struct {
	due time.Time
	// behind is true if the delivery did not fail: it waits behind an earlier one.
	behind bool
	// partition is where the delivery waits for its time in this process; nil if the
	// server brings it.
	partition *partition
}

// returning is a delivery that the caller must give back with this delay.
type returning struct {
	*delivery
	delay time.Duration
}

func newLanes(placesPerKey int) *lanes {
	return &lanes{placesPerKey: placesPerKey, byKey: map[string]*lane{}}
}

// enter admits d to its lane. There are three results:
//   - run is true: the caller runs d now.
//   - back is positive: an earlier event of the key waits for its retry, or the
//     running one is stuck. The caller gives d back to the server with this delay.
//   - neither: d is queued. A later leave returns it.
func (l *lanes) enter(d *delivery, now time.Time) (run bool, back time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[d.lane]
	if ln == nil {
		ln = l.fresh()
		l.byKey[d.lane] = ln
	}
	delete(ln.waiting, d.sequence)
	if back := ln.blockedFor(d, now); back > 0 {
		return false, back
	}
	switch {
	case ln.running == nil:
		ln.running = d
		return true, 0
	case ln.stuck:
		ln.addWait(d.sequence, wait{due: now.Add(stuckRetry), behind: true, partition: d.partition})
		return false, stuckRetry
	}
	if len(ln.queue) >= l.placesPerKey {
		d.giveUpPlace()
	}
	i := len(ln.queue)
	for i > 0 && ln.queue[i-1].sequence > d.sequence {
		i--
	}
	ln.queue = slices.Insert(ln.queue, i, d)
	return false, 0
}

// fresh returns an empty lane. The caller holds l.mu.
func (l *lanes) fresh() *lane {
	last := len(l.spare) - 1
	if last < 0 {
		return &lane{}
	}
	ln := l.spare[last]
	l.spare = l.spare[:last]
	return ln
}

// leave ends d's run. A positive retry says that d was given back with this delay.
// next is the delivery of the key that the caller runs next, nil if there is none.
// back are those that the caller gives back: they may not overtake a delivery
// that waits.
func (l *lanes) leave(d *delivery, retry time.Duration, now time.Time) (next *delivery, back []returning) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[d.lane]
	ln.running, ln.stuck = nil, false
	delete(ln.waiting, d.sequence) // an earlier delivery of the same event may have been given back
	if retry > 0 {
		ln.addWait(d.sequence, wait{due: now.Add(retry), partition: d.partition})
	}
	for len(ln.queue) > 0 {
		head := ln.queue[0]
		ln.queue = ln.queue[1:]
		away := ln.blockedFor(head, now)
		if away <= 0 {
			ln.running = head
			return head, back
		}
		back = append(back, returning{head, away})
	}
	l.tidy(d.lane, ln, now)
	return nil, back
}

// markStuck says that the handler of d ignores its cancellation. The caller gives
// back what it returns, the deliveries queued behind d. Then another replica can
// take over the whole key.
func (l *lanes) markStuck(d *delivery, now time.Time) (back []*delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[d.lane]
	if ln == nil || ln.running != d {
		return nil
	}
	ln.stuck = true
	back, ln.queue = ln.queue, nil
	for _, follower := range back {
		ln.addWait(follower.sequence, wait{due: now.Add(stuckRetry), behind: true, partition: follower.partition})
	}
	return back
}

// empty removes and returns all queued deliveries, for a shutdown.
func (l *lanes) empty() (queued []*delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.byKey {
		queued = append(queued, ln.queue...)
		ln.queue = nil
	}
	return queued
}

// sweep removes the lanes that wait only for events which went to another replica.
func (l *lanes) sweep(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, ln := range l.byKey {
		l.tidy(key, ln, now)
	}
}

// waits counts the events that wait for their redelivery.
func (l *lanes) waits() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.byKey {
		n += len(ln.waiting)
	}
	return n
}

func (l *lanes) tidy(key string, ln *lane, now time.Time) {
	for sequence, w := range ln.waiting {
		if w.gone(now) {
			delete(ln.waiting, sequence)
		}
	}
	if ln.running == nil && len(ln.waiting) == 0 {
		delete(l.byKey, key)
		ln.queue = nil
		l.spare = append(l.spare, ln)
	}
}

// gone reports whether the redelivery is so late that it went to another replica. What
// waits in this process comes, however late: after a standstill of the process all
// timers fire at once, and the order of the key must hold.
func (w wait) gone(now time.Time) bool {
	return (w.partition == nil || w.partition.closed()) && now.After(w.due.Add(holdSlack))
}

// blockedFor returns how long d must wait for an earlier event of its key, or for an
// earlier delivery of the same event. Zero means that d may run. Otherwise it
// records that d waits.
func (ln *lane) blockedFor(d *delivery, now time.Time) time.Duration {
	var until time.Time
	for sequence, w := range ln.waiting {
		if sequence > d.sequence || w.gone(now) {
			continue
		}
		due := w.due
		if !w.behind {
			due = due.Add(holdStep) // all that wait for one retry come due together, after it
		}
		if due.After(until) {
			until = due
		}
	}
	if until.IsZero() {
		return 0
	}
	back := max(until.Sub(now), holdStep)
	ln.addWait(d.sequence, wait{due: now.Add(back), behind: true, partition: d.partition})
	return back
}

func (ln *lane) addWait(sequence uint64, w wait) {
	if ln.waiting == nil {
		ln.waiting = map[uint64]wait{}
	}
	ln.waiting[sequence] = w
}
