package consumer

import "sync"

// slots is the bulkhead: at most so many handlers run at once, fewer while a [Hold]
// says so.
type slots struct {
	size int

	mu      sync.Mutex
	freed   *sync.Cond
	limit   int // at most size
	taken   int
	waiting int
	stopped bool // no more may start
}

func newSlots(n int) *slots {
	s := &slots{size: n, limit: n}
	s.freed = sync.NewCond(&s.mu)
	return s
}

// slot is a place for one handler. It belongs to one goroutine.
type slot struct {
	of   *slots
	held bool
}

func (s *slots) slot() slot { return slot{of: s} }

// acquire waits for the slot; false when the consumer is stopping, or when the
// partition that the event is of, nil for none, is no longer this process's.
func (s *slot) acquire(p *partition) bool {
	of := s.of
	of.mu.Lock()
	defer of.mu.Unlock()
	of.waiting++
	for !of.stopped && of.taken >= of.limit && (p == nil || !p.closed()) {
		of.freed.Wait()
	}
	of.waiting--
	if of.stopped || of.taken >= of.limit {
		return false
	}
	of.taken++
	s.held = true
	return true
}

// again takes the slot for another run of a handler that has returned. It waits for
// no [Hold]: then it returns false.
func (s *slot) again(p *partition) bool {
	return s.of.begins() > 0 && s.acquire(p)
}

// release gives the slot back, if it is held.
func (s *slot) release() {
	if !s.held {
		return
	}
	s.held = false
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.taken--; s.of.taken < s.of.limit {
		s.of.freed.Signal()
	}
}

// bound lets at most n handlers run at once from now on. Those that run go on.
func (s *slots) bound(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = min(max(n, 0), s.size)
	s.freed.Broadcast()
}

// begins is how many handlers may run at once now.
func (s *slots) begins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// queue is how many events wait for a slot.
func (s *slots) queue() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// look has those that wait look again whether they have to.
func (s *slots) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed.Broadcast()
}

// stop lets nothing start any more.
func (s *slots) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.freed.Broadcast()
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
