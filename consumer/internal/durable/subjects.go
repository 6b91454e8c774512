package durable

import (
	"fmt"
	"slices"

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
