package audit

import (
	"fmt"
	"maps"
	"slices"
)

// checkCourses: the events of an order took effect on each consumer with pages once each,
// and in the order in which they are stored.
//
// An event that was sent again, as a replay, after a long delay or because it had given its
// key up, may have come after those behind it. It did not come before one ahead of it: that
// one had ended, or had given its key up itself, when the event was first taken.
func (c *checker) checkCourses() {
	for _, consumer := range slices.Sorted(maps.Keys(c.Courses)) {
		course := c.Courses[consumer]
		ends, resent := map[string][]int{}, map[string]bool{}
		for i, key := range course.Ended {
			ends[key] = append(ends[key], i)
		}
		for _, key := range course.Resent {
			resent[key] = true
		}
		for _, id := range c.orders {
			c.checkCourse(consumer, id, ends, resent)
		}
	}
}

// checkCourse looks at the events of one order. ends are where on the pages they stand.
func (c *checker) checkCourse(consumer, id string, ends map[string][]int, resent map[string]bool) {
	var last Event
	latest := -1
	for _, e := range c.distinct(id) {
		at := ends[e.EventKey]
		if len(at) == 0 {
			continue
		}
		if len(at) > 1 {
			c.report(Sequence, id, fmt.Sprintf("one end of %s %s in %s", e.Type, e.ID, consumer), fmt.Sprint(len(at)))
		}
		if at[0] < latest {
			c.report(Sequence, id, fmt.Sprintf("%s handled by %s before %s, as they are stored", last.Type, consumer, e.Type), "after it")
			continue
		}
		if !resent[e.EventKey] {
			last, latest = e, at[0]
		}
	}
}
