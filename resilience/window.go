package resilience

import "time"

// window counts calls and failures over the last calls, or over the last time. The
// zero window counts nothing.
type window struct {
	slots []slot
	// width is the time of one slot; 0 makes each call a slot.
	width time.Duration
	at    int64 // number of the newest slot
	sum   slot
}

type slot struct{ calls, failures int }

func newWindow(c BreakerConfig) window {
	switch {
	case c.FailureRate == 0:
		return window{}
	case c.Window > 0:
		return window{slots: make([]slot, windowSteps), width: c.Window / windowSteps}
	default:
		return window{slots: make([]slot, c.WindowCalls)}
	}
}

// add counts a call that ended now, and returns what the window holds.
func (w *window) add(now time.Duration, failed bool) slot {
	if len(w.slots) == 0 {
		return slot{}
	}
	next := w.at + 1
	if w.width > 0 {
		next = int64(now / w.width)
	}
	w.moveTo(next)
	newest := w.newest()
	newest.calls++
	w.sum.calls++
	if failed {
		newest.failures++
		w.sum.failures++
	}
	return w.sum
}

// moveTo drops what is too old once slot n is the newest.
func (w *window) moveTo(n int64) {
	if n-w.at >= int64(len(w.slots)) {
		w.clear()
		w.at = n
		return
	}
	for w.at < n {
		w.at++
		old := w.newest()
		w.sum.calls -= old.calls
		w.sum.failures -= old.failures
		*old = slot{}
	}
}

func (w *window) newest() *slot { return &w.slots[w.at%int64(len(w.slots))] }

// clear forgets all calls.
func (w *window) clear() {
	clear(w.slots)
	w.sum = slot{}
}
