package durable

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// among reports whether related(f, filter) holds for one of the filters f.
func among(filters []string, related func(a, b string) bool, filter string) bool {
	return slices.ContainsFunc(filters, func(f string) bool { return related(f, filter) })
}

// uncovered returns those of want that no filter of have covers.
func uncovered(want, have []string) (missing []string) {
	for _, w := range want {
		if !among(have, event.SubjectCovers, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

// widened returns the filters that match what have and added match. The server
// takes no two that overlap: one that another covers is left out, and others
// that overlap are an error.
func widened(have, added []string) ([]string, error) {
	all := slices.Clone(have)
	for _, a := range added {
		if among(all, event.SubjectCovers, a) {
			continue
		}
		all = slices.DeleteFunc(all, func(f string) bool { return event.SubjectCovers(a, f) })
		for _, f := range all {
			if event.SubjectsCollide(f, a) {
				return nil, fmt.Errorf("subjects %s and %s overlap, and the server takes no two that do", f, a)
			}
		}
		all = append(all, a)
	}
	return all, nil
}

// former returns the filter that a version before partitions had for the same
// events: events.order.placed.v1.* for events.order.placed.v1.>
func former(b *bus.Bus, stream, filter string) (string, bool) {
	if stream != b.Names().EventsStream() || !strings.HasPrefix(filter, b.Names().Root("events.")) {
		return "", false
	}
	t, ok := strings.CutSuffix(filter, ">")
	return t + "*", ok
}

// grow puts the filters that this version has in place of those that a version
// before partitions had. The durable keeps its place: it has passed over nothing,
// because the stream gets its partitions only when all durables have the new
// filters (topology). If somebody has done that by hand and there are such events,
// the old filter stays, and the new one is added with a catch-up like any other.
func (d *Durable) grow(ctx context.Context, have []string) ([]string, error) {
	grown := slices.Clone(have)
	for _, subject := range d.cfg.Subjects {
		old, ok := former(d.cfg.Bus, d.cfg.Stream, subject)
		i := slices.Index(grown, old)
		if !ok || i < 0 {
			continue
		}
		last, err := d.lastOf(ctx, []string{old + ".*"})
		if err != nil {
			return nil, err
		}
		if last == 0 {
			grown[i] = subject
		}
	}
	return grown, nil
}
