package dedup

import (
	"slices"
	"sync"
	"time"
)

// live holds the claims of this process, also those that are being written. So a
// second copy of a running event is answered without a round trip. It also
// remembers claims that an outage has left behind. They are continued, and do not
// count as crashes.
type live struct {
	mu      sync.Mutex
	holds   map[string]hold
	sweepAt int
}

type hold struct {
	by    string
	until time.Time // local clock: the end of the lease
	// asking is true while the store has not answered the claim. The store may refuse it.
	asking bool
	// lost is true if nobody runs the claim here, but the ledger may still hold it:
	// its write or its release was not answered.
	lost bool
	// past are the names of lost claims before this one.
	past []string
}

const (
	// minSweep is the number of holds from which on stale ones are looked for.
	minSweep = 1024
	// keepLost is how long a lost claim is remembered after its lease. It is longer
	// than most outages: the end of the outage brings the event back.
	keepLost = time.Hour
	// maxPast is how many lost claims in a row are remembered.
	maxPast = 64
)

// reserve takes the key for the claim named by. It returns the names of lost claims
// that the claim may continue. If this process may still hold the key, it
// returns instead how long to wait before the next try.
func (l *live) reserve(key, by string, lease time.Duration, now time.Time) (past []string, retryIn time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.holds[key]
	if left := h.until.Sub(now); ok && !h.lost && left > 0 {
		if h.asking {
			left = 0
		}
		return nil, left + retryMargin
	}
	if h.lost {
		past = append(slices.Clip(h.past), h.by)
		past = past[max(0, len(past)-maxPast):]
	}
	l.sweep(now)
	l.holds[key] = hold{by: by, until: now.Add(lease), asking: true, past: past}
	return past, 0
}

// renew moves the end of a lease, unless another claim has the key.
func (l *live) renew(key, by string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.holds[key]; ok && h.by == by {
		l.holds[key] = hold{by: by, until: until}
	}
}

// lose gives up a claim whose write or release was not answered.
func (l *live) lose(key, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.holds[key]; ok && h.by == by {
		h.asking, h.lost = false, true
		l.holds[key] = h
	}
}

// drop ends a hold.
func (l *live) drop(key, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds[key].by == by {
		delete(l.holds, key)
	}
}

// sweep removes stale holds each time the number of holds has doubled.
func (l *live) sweep(now time.Time) {
	if l.holds == nil {
		l.holds = map[string]hold{}
	}
	if len(l.holds) < max(l.sweepAt, minSweep) {
		return
	}
	for key, h := range l.holds {
		if h.lost {
			h.until = h.until.Add(keepLost)
		}
		if now.After(h.until) {
			delete(l.holds, key)
		}
	}
	l.sweepAt = 2 * len(l.holds)
}
