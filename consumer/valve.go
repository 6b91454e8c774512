package consumer

import (
	"context"
	"math"
	"sync"
	"time"
)

// Hold bounds what a process begins to handle, for one reason: an operator's pause,
// the open breaker of a dependency. Events that have begun go on, and those that the
// process has stay its own and are kept alive, for however long.
type Hold struct {
	// Handlers is how many may run at once; 0 begins none.
	Handlers int
	// Fetch is how many events the process asks the server for, to have them at hand,
	// if Handlers are fewer.
	Fetch int
	// PauseUntil is until when the server delivers nothing to any process of the
	// consumer, by the server's clock; zero leaves that alone. The server resumes by
	// itself. What the server may not be asked for this process does without.
	PauseUntil time.Time
}

// Hold sets what bounds this process for a reason, as in "operator"; of several
// reasons the one that allows least counts. It holds from when it returns until
// [Consumer.Release].
func (c *Consumer) Hold(reason string, h Hold) { c.valve.set(reason, &h) }

// Release takes a reason away. One that is not there is no error.
func (c *Consumer) Release(reason string) { c.valve.set(reason, nil) }

// Waiting is how many events this process has that could begin if nothing held them.
func (c *Consumer) Waiting() int { return c.slots.queue() }

// valve is what all holds come to.
type valve struct {
	slots *slots

	mu    sync.Mutex
	holds map[string]Hold
	turn  chan struct{} // closed when something changes
	read  map[durableName]int
}

// durableName is a durable that this process reads.
type durableName struct{ stream, name string }

func newValve(s *slots) *valve {
	return &valve{slots: s, holds: map[string]Hold{}, turn: make(chan struct{}), read: map[durableName]int{}}
}

func (v *valve) set(reason string, h *Hold) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before, held := v.holds[reason]
	switch {
	case h == nil && !held, h != nil && held && *h == before:
		return
	case h == nil:
		delete(v.holds, reason)
	default:
		v.holds[reason] = *h
	}
	least := v.slots.size
	for _, h := range v.holds {
		least = min(least, h.Handlers)
	}
	v.slots.bound(least)
	v.wake()
}

// wake tells those that wait for a change. The caller holds v.mu.
func (v *valve) wake() {
	close(v.turn)
	v.turn = make(chan struct{})
}

// turned returns a channel that is closed at the next change.
func (v *valve) turned() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.turn
}

// appetite is how many events this process asks for. Unbounded it is more than any
// process has room for.
func (v *valve) appetite() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	most := math.MaxInt32
	for _, h := range v.holds {
		if want := max(h.Handlers, h.Fetch); want < v.slots.size {
			most = min(most, want)
		}
	}
	return most
}

// fetching waits until this process may ask for events; false when ctx ends.
func (v *valve) fetching(ctx context.Context) bool {
	for {
		turned := v.turned()
		if v.appetite() > 0 {
			return true
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return false
		}
	}
}

// pauseUntil is until when the server should deliver nothing, zero if it should deliver.
func (v *valve) pauseUntil() (until time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, h := range v.holds {
		if h.Handlers == 0 && h.Fetch == 0 && h.PauseUntil.After(until) {
			until = h.PauseUntil
		}
	}
	return until
}

// reads takes note that this process reads a durable, until the function that it
// returns is called.
func (v *valve) reads(stream, name string) (ends func()) {
	d := durableName{stream, name}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.read[d]++
	v.wake()
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.read[d]--; v.read[d] == 0 {
			delete(v.read, d)
		}
	}
}

// durables are those that this process reads.
func (v *valve) durables() (all []durableName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for d := range v.read {
		all = append(all, d)
	}
	return all
}
