package dedup

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A window against a map of what it was told: the floor is the last message before the
// first one that has not ended.
func TestWindowHasItsFloorBelowTheFirstThatIsOpen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := window{floor: uint64(rapid.IntRange(0, 5).Draw(rt, "floor"))}
		first, last := w.floor, w.floor
		states := map[uint64]placeState{}
		var entered []uint64
		floorBelow := func(ends func(placeState) bool) uint64 {
			floor := first
			for _, n := range entered {
				if !ends(states[n]) {
					break
				}
				floor = n
			}
			return floor
		}
		rt.Repeat(map[string]func(*rapid.T){
			"enter": func(rt *rapid.T) {
				n := uint64(rapid.IntRange(0, 100).Draw(rt, "sequence"))
				if got := w.enter(n); got != (n > last) {
					rt.Fatalf("enter %d after %d is %v", n, last, got)
				}
				if n > last {
					entered, last = append(entered, n), n
				}
			},
			"next": func(rt *rapid.T) {
				last += uint64(rapid.IntRange(1, 3).Draw(rt, "apart"))
				if !w.enter(last) {
					rt.Fatalf("%d is not taken in", last)
				}
				entered = append(entered, last)
			},
			"set": func(rt *rapid.T) {
				if len(entered) == 0 {
					return
				}
				n := rapid.SampledFrom(entered).Draw(rt, "sequence")
				if n <= w.floor { // it is over
					return
				}
				states[n] = rapid.SampledFrom([]placeState{placeOpen, placeEnding, placeEnded}).Draw(rt, "state")
				w.set(n, states[n])
			},
			"settle": func(*rapid.T) { w.settle() },
			"stranger": func(rt *rapid.T) {
				n := uint64(rapid.IntRange(0, 200).Draw(rt, "sequence"))
				if !slices.Contains(entered, n) {
					w.set(n, placeEnded)
				}
			},
			"": func(rt *rapid.T) {
				ended := floorBelow(func(s placeState) bool { return s == placeEnded })
				if w.floor > ended {
					rt.Fatalf("floor %d passes what is open after %d", w.floor, ended)
				}
				if got, want := w.reached(), floorBelow(func(s placeState) bool { return s != placeOpen }); got != max(want, w.floor) {
					rt.Fatalf("reached %d, want %d", got, want)
				}
				running := 0
				for _, n := range entered {
					if states[n] != placeEnded && n > w.floor {
						running++
					}
				}
				if w.running() != running {
					rt.Fatalf("%d run, want %d", w.running(), running)
				}
				after := w
				after.open = slices.Clone(w.open)
				if after.settle(); after.floor != ended {
					rt.Fatalf("floor %d when it is settled, want %d", after.floor, ended)
				}
			},
		})
	})
}
