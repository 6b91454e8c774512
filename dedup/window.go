package dedup

import "sort"

// window is what a partition's owner has been given above the floor: the sequence
// in the stream up to which everything of the partition has ended. The events of
// other partitions lie between.
type window struct {
	floor uint64
	open  []place // in order of the sequence
	// behind are messages below the floor: of types that the owner before did not handle.
	behind map[uint64]struct{}
}

// place is one message in the window.
type place struct {
	sequence uint64
	state    placeState
}

type placeState uint8

const (
	placeOpen   placeState = iota
	placeEnding            // what ends it is on its way into the stream
	placeEnded
)

// enter takes a message in, as the server hands it out: in order. It reports false
// for one that was taken in before.
func (w *window) enter(sequence uint64) bool {
	if sequence <= w.floor {
		return false
	}
	if n := len(w.open); n > 0 && w.open[n-1].sequence >= sequence {
		return false
	}
	w.open = append(w.open, place{sequence: sequence})
	return true
}

// enterBehind takes in a message below the floor.
func (w *window) enterBehind(sequence uint64) bool {
	if _, entered := w.behind[sequence]; entered {
		return false
	}
	if w.behind == nil {
		w.behind = map[uint64]struct{}{}
	}
	w.behind[sequence] = struct{}{}
	return true
}

// holds reports whether a message has entered and not ended.
func (w *window) holds(sequence uint64) bool {
	if _, behind := w.behind[sequence]; behind {
		return true
	}
	i := sort.Search(len(w.open), func(i int) bool { return w.open[i].sequence >= sequence })
	return i < len(w.open) && w.open[i].sequence == sequence && w.open[i].state != placeEnded
}

// set says what has become of a message.
func (w *window) set(sequence uint64, state placeState) {
	if _, behind := w.behind[sequence]; behind {
		if state == placeEnded {
			delete(w.behind, sequence)
		}
		return
	}
	i := sort.Search(len(w.open), func(i int) bool { return w.open[i].sequence >= sequence })
	if i < len(w.open) && w.open[i].sequence == sequence {
		w.open[i].state = state
	}
}

// reached is where the floor will be when all that is ending has ended.
func (w *window) reached() uint64 {
	floor := w.floor
	for _, p := range w.open {
		if p.state == placeOpen {
			break
		}
		floor = p.sequence
	}
	return floor
}

// settle moves the floor over what has ended.
func (w *window) settle() {
	n := 0
	for n < len(w.open) && w.open[n].state == placeEnded {
		w.floor = w.open[n].sequence
		n++
	}
	w.open = w.open[n:]
}

// running counts the messages in the window that have not ended.
func (w *window) running() (n int) {
	n = len(w.behind)
	for _, p := range w.open {
		if p.state != placeEnded {
			n++
		}
	}
	return n
}
