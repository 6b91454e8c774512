package consumer

import (
	"fmt"
	"slices"
	"strings"
)

// covers reports whether filter a matches every subject that filter b matches.
func covers(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, token := range as {
		switch {
		case token == ">":
			return len(bs) > i
		case i >= len(bs), bs[i] == ">":
			return false
		case token != "*" && token != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}

// overlaps reports whether some subject is matched by both filters.
func overlaps(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		switch {
		case i >= len(as) || i >= len(bs):
			return false
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != "*" && bs[i] != "*" && as[i] != bs[i]:
			return false
		}
	}
	return true
}

// among reports whether related(f, filter) holds for one of the filters f.
func among(filters []string, related func(a, b string) bool, filter string) bool {
	return slices.ContainsFunc(filters, func(f string) bool { return related(f, filter) })
}

// uncovered returns those of want that no filter of have covers.
func uncovered(want, have []string) (missing []string) {
	for _, w := range want {
		if !among(have, covers, w) {
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
		if among(all, covers, a) {
			continue
		}
		all = slices.DeleteFunc(all, func(f string) bool { return covers(a, f) })
		for _, f := range all {
			if overlaps(f, a) {
				return nil, fmt.Errorf("subjects %s and %s overlap, and the server takes no two that do", f, a)
			}
		}
		all = append(all, a)
	}
	return all, nil
}
