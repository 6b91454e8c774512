package consumer

import (
	"context"
	"time"
)

// FreeBudget is how many more deliveries c would hold; all of its InFlight
// once everything is settled.
func FreeBudget(c *Consumer) (free int) {
	if len(c.feeds) == 0 {
		return c.cfg.InFlight // those of partitions go with their feeds
	}
	for _, f := range c.feeds {
		f.budget.mu.Lock()
		free += f.budget.free
		f.budget.mu.Unlock()
	}
	return free
}

// Lanes is how many keys c keeps an order for.
func Lanes(c *Consumer) int {
	c.lanes.mu.Lock()
	defer c.lanes.mu.Unlock()
	return len(c.lanes.byKey)
}

// ServerAhead makes c believe that the server's clock is ahead of its own by d.
func ServerAhead(c *Consumer, d time.Duration) {
	now := c.now
	c.now = func(ctx context.Context) (time.Time, error) {
		t, err := now(ctx)
		return t.Add(d), err
	}
}

// Begins is how many handlers c may begin now.
func Begins(c *Consumer) int { return c.slots.begins() }
