package consumer

import (
	"slices"
	"sync"
	"time"
)

// holdSlack is how long after its due time a retried event still holds its
// key: a redelivery can be late. An event that has not come back by then went
// to another replica.
const holdSlack = 2 * time.Second

// holdStep is how far behind an earlier event of its key a follower comes due,
// and how soon it asks again while the earlier one is late.
const holdStep = 50 * time.Millisecond

// lanes keeps events of one key in order within this process: they run one
// after another, and an event that waits for a retry holds its key, not the
// others. Deliveries enter with [lanes.enter]; whoever is told to run one runs
// it and calls [lanes.leave], which hands out the next.
type lanes struct {
	// share is how many queued deliveries of a key hold a place of the process.
	// Those behind them give theirs up. They could not run soon, and would keep the
	// process from asking for events of other keys, for which workers are free.
	share int

	mu    sync.Mutex
	byKey map[string]*lane
}

// lane is one key's queue. It exists while something of the key is running,
// queued or waiting for its redelivery.
type lane struct {
	running *delivery
	stuck   bool        // its handler ignores its cancellation
	queue   []*delivery // in stream order
	// waiting are deliveries given back, by sequence.
	waiting map[uint64]wait
}

// wait is a delivery's time away.
type wait struct {
	due time.Time
	// behind says that it waits only so as not to overtake another.
	behind bool
}

// held is a delivery to be given back, and for how long.
type held struct {
	*delivery
	delay time.Duration
}

func newLanes(share int) *lanes { return &lanes{share: share, byKey: map[string]*lane{}} }

// enter admits d to its lane. If run is true the caller runs d now. Otherwise,
// if back is positive d may not run now, because an earlier event of the key
// waits for its retry or the running one is stuck, and goes back to the server
// for that long; else d is queued and will be handed out by leave.
func (l *lanes) enter(d *delivery, now time.Time) (run bool, back time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[d.lane]
	if ln == nil {
		ln = &lane{}
		l.byKey[d.lane] = ln
	}
	delete(ln.waiting, d.sequence)
	if back := ln.hold(d, now); back > 0 {
		return false, back
	}
	switch {
	case ln.running == nil:
		ln.running = d
		return true, 0
	case ln.stuck:
		ln.await(d.sequence, wait{due: now.Add(stuckRetry), behind: true})
		return false, stuckRetry
	}
	if len(ln.queue) >= l.share {
		d.giveUpPlace()
	}
	i := len(ln.queue)
	for i > 0 && ln.queue[i-1].sequence > d.sequence {
		i--
	}
	ln.queue = slices.Insert(ln.queue, i, d)
	return false, 0
}

// leave ends d's run. With a positive retry d is on its way back and due after
// it. leave returns the delivery of the key to run next, if any, and those to
// give back because they may not overtake d, or another that waits.
func (l *lanes) leave(d *delivery, retry time.Duration, now time.Time) (next *delivery, back []held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[d.lane]
	ln.running, ln.stuck = nil, false
	delete(ln.waiting, d.sequence) // an earlier delivery of it may have been given back
	if retry > 0 {
		ln.await(d.sequence, wait{due: now.Add(retry)})
	}
	for len(ln.queue) > 0 {
		head := ln.queue[0]
		ln.queue = ln.queue[1:]
		away := ln.hold(head, now)
		if away <= 0 {
			ln.running = head
			return head, back
		}
		back = append(back, held{head, away})
	}
	l.tidy(d.lane, ln, now)
	return nil, back
}

// stick marks d's lane as stuck: the handler that runs d ignores its
// cancellation. It returns what is queued behind d, to be given back, so that
// another replica can take the key over together with d.
func (l *lanes) stick(d *delivery, now time.Time) (back []*delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[d.lane]
	if ln == nil || ln.running != d {
		return nil
	}
	ln.stuck = true
	back, ln.queue = ln.queue, nil
	for _, follower := range back {
		ln.await(follower.sequence, wait{due: now.Add(stuckRetry), behind: true})
	}
	return back
}

// empty takes every queued delivery out, for a shutdown.
func (l *lanes) empty() (queued []*delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.byKey {
		queued = append(queued, ln.queue...)
		ln.queue = nil
	}
	return queued
}

// sweep forgets lanes whose waiting events never came back here.
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
	}
}

// gone reports whether a redelivery is so late that it must have gone elsewhere.
func (w wait) gone(now time.Time) bool { return now.After(w.due.Add(holdSlack)) }

// hold returns how long d must wait for an earlier event of its key, or for an
// earlier delivery of itself, zero if it need not, and notes that d waits.
func (ln *lane) hold(d *delivery, now time.Time) time.Duration {
	var until time.Time
	for sequence, w := range ln.waiting {
		if sequence > d.sequence || w.gone(now) {
			continue
		}
		due := w.due
		if !w.behind {
			due = due.Add(holdStep) // all who wait for one retry come due together, in order
		}
		if due.After(until) {
			until = due
		}
	}
	if until.IsZero() {
		return 0
	}
	back := max(until.Sub(now), holdStep)
	ln.await(d.sequence, wait{due: now.Add(back), behind: true})
	return back
}

func (ln *lane) await(sequence uint64, w wait) {
	if ln.waiting == nil {
		ln.waiting = map[uint64]wait{}
	}
	ln.waiting[sequence] = w
}
