package audit

import "fmt"

// checkOrderOfKey: the events of an order took effect in the inventory once each, in the
// order in which they are stored. An event that was sent again, as a replay or after a
// long delay, may have come later, and those after it are not late because of that.
func (c *checker) checkOrderOfKey(id string) {
	var last Event
	latest := -1
	for _, e := range c.distinct(id) {
		ends := c.ends[e.EventKey]
		if len(ends) == 0 || c.resent[e.EventKey] {
			continue
		}
		if len(ends) > 1 {
			c.report(Sequence, id, fmt.Sprintf("one end of %s %s in the inventory", e.Type, e.ID), fmt.Sprint(len(ends)))
		}
		if ends[0] < latest {
			c.report(Sequence, id, fmt.Sprintf("%s handled by the inventory before %s, as they are stored", last.Type, e.Type), "after it")
			continue
		}
		last, latest = e, ends[0]
	}
}
