package consumer_test

import (
	"maps"
	"sync"
	"testing"

	"github.com/farandole/farandole/event"
)

// tally counts by name.
type tally struct {
	mu sync.Mutex
	by map[string]int
}

// add counts one more, and returns how many that are.
func (c *tally) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.by[name]++
	return c.by[name]
}

func (c *tally) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[name]
}

func (c *tally) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.by)
}

// wantOnce checks that each event has been counted once, and nothing else.
func (c *tally) wantOnce(tb testing.TB, events []event.Event) {
	tb.Helper()
	all := c.all()
	for _, e := range events {
		if n := all[e.ID()]; n != 1 {
			tb.Errorf("%s took effect %d times, want once", e.ID(), n)
		}
		delete(all, e.ID())
	}
	for id, n := range all {
		tb.Errorf("%s took effect %d times, want never", id, n)
	}
}

// total is how often anything was counted.
func (c *tally) total() (n int) {
	for _, times := range c.all() {
		n += times
	}
	return n
}
