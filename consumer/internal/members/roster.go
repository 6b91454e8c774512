package members

import (
	"maps"
	"time"
)

const (
	// lifetime is how long a member is there after its last renewal. The bucket's
	// max_age is the same.
	lifetime = 4 * time.Second
	// standstill is how long a stream that one member at least writes to once a
	// second is quiet only if nobody can write.
	standstill = 2500 * time.Millisecond
)

// roster is who is there, as the messages of the bucket's stream tell in their
// order. Its time is when they were stored.
type roster struct {
	now     time.Time
	entries map[string]entry
}

type entry struct {
	Member
	renewed time.Time
}

// pass takes note that the stream has stored something at t. A time in which
// nobody wrote counts for nobody; nor does a step back, to the clock of another
// server.
func (r *roster) pass(t time.Time) {
	quiet := t.Sub(r.now)
	if !r.now.IsZero() && (quiet < 0 || quiet > standstill) {
		for id, e := range r.entries {
			e.renewed = e.renewed.Add(quiet)
			r.entries[id] = e
		}
	}
	r.now = t
}

// renew takes note of a member, and reports whether that changes the balance.
func (r *roster) renew(m Member) bool {
	before, known := r.entries[m.ID]
	r.entries[m.ID] = entry{Member: m, renewed: r.now}
	return !known || before.Leaving != m.Leaving
}

// remove takes a member out, and reports whether it was there.
func (r *roster) remove(id string) bool {
	_, known := r.entries[id]
	delete(r.entries, id)
	return known
}

// expire takes out who has not renewed, and reports whether there were any.
func (r *roster) expire() bool {
	before := len(r.entries)
	maps.DeleteFunc(r.entries, func(_ string, e entry) bool { return r.now.Sub(e.renewed) >= lifetime })
	return len(r.entries) < before
}

// merge takes over what was read from the beginning by a new watch. Who is not in
// it gets a lifetime from now on to renew: the bucket may have lost its keys while
// nobody could write, or with the server.
func (r *roster) merge(read roster, left map[string]bool) (changed bool) {
	if read.now.IsZero() { // nothing was there
		read.now = r.now
	}
	for id, e := range r.entries {
		_, found := read.entries[id]
		switch {
		case left[id]:
			changed = true
		case !found:
			e.renewed = read.now
			read.entries[id] = e
		}
	}
	for id, e := range read.entries {
		before, known := r.entries[id]
		changed = changed || !known || before.Leaving != e.Leaving
	}
	*r = read
	return changed
}

// members are all and self.
func (r *roster) members(self Member) []Member {
	all := []Member{self}
	for _, e := range r.entries {
		all = append(all, e.Member)
	}
	return all
}
