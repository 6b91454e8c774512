package consumer

import "sync"

// slots is the bulkhead: at most so many handlers run at once.
type slots struct {
	free chan struct{}
	stop <-chan struct{} // closed when no more may start
}

func newSlots(n int, stop <-chan struct{}) *slots {
	return &slots{free: make(chan struct{}, n), stop: stop}
}

// slot is a place for one handler. It belongs to one goroutine.
type slot struct {
	of   *slots
	held bool
}

func (s *slots) slot() slot { return slot{of: s} }

// acquire waits for the slot; false when the consumer is stopping.
func (s *slot) acquire() bool {
	select {
	case <-s.of.stop:
		return false
	default:
	}
	select {
	case s.of.free <- struct{}{}:
		s.held = true
	case <-s.of.stop:
	}
	return s.held
}

// release gives the slot back, if it is held.
func (s *slot) release() {
	if s.held {
		s.held = false
		<-s.of.free
	}
}

// budget bounds the deliveries that this process holds: a pull asks the server for
// no more than the places that are free. Deliveries that are far behind others of
// their key hold no place: MaxAckPending and [maxExtra] bound those.
type budget struct {
	mu    sync.Mutex
	size  int
	free  int
	extra int             // bytes of deliveries without a place
	freed []chan struct{} // one for each who watches
}

func newBudget(n int) *budget { return &budget{size: n, free: n} }

// watch returns a channel that signals when something becomes free. Each who waits
// needs one of their own, because a signal is received once.
func (b *budget) watch() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	freed := make(chan struct{}, 1)
	b.freed = append(b.freed, freed)
	return freed
}

// reserve takes up to most places, none if fewer than least are free.
func (b *budget) reserve(least, most int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(b.free, most)
	if n < max(least, 1) {
		return 0
	}
	b.free -= n
	return n
}

// maxExtra is how many bytes a process holds of deliveries without a place.
const maxExtra = 64 << 20

// swap frees a place, and takes room for so many bytes instead, if there is.
func (b *budget) swap(bytes int) bool {
	b.mu.Lock()
	if b.extra+bytes > maxExtra {
		b.mu.Unlock()
		return false
	}
	b.extra += bytes
	b.mu.Unlock()
	b.release(1)
	return true
}

// places is how many there are, free or not.
func (b *budget) places() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size
}

// resize changes how many places there are.
func (b *budget) resize(n int) {
	b.mu.Lock()
	more := n - b.size
	b.size = n
	b.mu.Unlock()
	if more > 0 {
		b.release(more)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += more
}

// shrink gives back what swap has taken.
func (b *budget) shrink(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.extra -= bytes
}

// overdraw takes a place that was not reserved.
func (b *budget) overdraw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free--
}

func (b *budget) release(n int) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	for _, freed := range b.freed {
		select {
		case freed <- struct{}{}:
		default:
		}
	}
}
