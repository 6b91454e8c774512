package consumer

// FreeBudget is how many more deliveries c would hold; all of its InFlight
// once everything is settled.
func FreeBudget(c *Consumer) int {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	return c.budget.free
}

// Lanes is how many keys c keeps an order for.
func Lanes(c *Consumer) int {
	c.lanes.mu.Lock()
	defer c.lanes.mu.Unlock()
	return len(c.lanes.byKey)
}
