package dedup

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/farandole/farandole/event"
)

// typeFloors tells for each event type up to which sequence its events were handled,
// if that is not the floor of the page: [atFloor] stands for that.
type typeFloors map[event.Type]uint64

const atFloor = ^uint64(0)

// of returns them for an owner that handles these types and begins at floor. Types
// that it does not handle stay behind from there on.
func (f typeFloors) of(types []event.Type, floor uint64) typeFloors {
	next := typeFloors{}
	for t, at := range f {
		if at == atFloor && !slices.Contains(types, t) {
			at = floor
		}
		next[t] = at
	}
	return next
}

// String writes them as in "order.placed.v1 order.cancelled.v1@48213".
func (f typeFloors) String() string {
	words := make([]string, 0, len(f))
	for _, t := range slices.Sorted(maps.Keys(f)) {
		word := string(t)
		if at := f[t]; at != atFloor {
			word += "@" + strconv.FormatUint(at, 10)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func typeFloorsOf(s string) (typeFloors, error) {
	f := typeFloors{}
	for _, word := range strings.Fields(s) {
		t, at, behind := strings.Cut(word, "@")
		f[event.Type(t)] = atFloor
		if behind {
			n, err := strconv.ParseUint(at, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s is %q", headerTypes, s)
			}
			f[event.Type(t)] = n
		}
	}
	return f, nil
}
