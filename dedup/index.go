package dedup

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"
)

// digest is the first 128 bits of an event key, which is a hash itself.
type digest [16]byte

// index is the set of events that have ended on one partition, for as long as the
// ledger remembers them. An event takes 16 bytes. The newest ones are in a map, all
// others in sorted runs, which a look-up searches by interpolation: hashes are
// spread evenly. Runs of one slot of time are merged, and forgotten together.
type index struct {
	retention time.Duration
	recent    map[digest]struct{}
	runs      []run // oldest first
	slot      int64 // of recent
}

// run is a sorted set of events that ended within one slot of time.
type run struct {
	slot    int64
	digests []digest
}

const (
	// maxRecent is how many events are kept in the map.
	maxRecent = 512
	// slots is by what part of the retention an event may be remembered longer.
	slots = 8
)

func newIndex(retention time.Duration) *index {
	return &index{retention: retention, recent: map[digest]struct{}{}}
}

func (x *index) slotOf(at time.Time) int64 { return at.UnixNano() / int64(x.retention/slots+1) }

// add puts an event in that ended at a time. Times come in order, or nearly so.
func (x *index) add(d digest, at time.Time) {
	if slot := x.slotOf(at); slot > x.slot || len(x.recent) >= maxRecent {
		x.flush()
		x.slot = max(x.slot, slot)
	}
	x.recent[d] = struct{}{}
}

// flush makes the map a run, and merges it with those before it that are not much
// larger: so there are few runs, and each event is moved a few times only.
func (x *index) flush() {
	if len(x.recent) == 0 {
		return
	}
	next := run{slot: x.slot, digests: make([]digest, 0, len(x.recent))}
	for d := range x.recent {
		next.digests = append(next.digests, d)
	}
	clear(x.recent)
	slices.SortFunc(next.digests, func(a, b digest) int { return bytes.Compare(a[:], b[:]) })
	for n := len(x.runs); n > 0; n-- {
		before := x.runs[n-1]
		if before.slot != next.slot || len(before.digests) > 2*len(next.digests) {
			break
		}
		next.digests = merged(before.digests, next.digests)
		x.runs = x.runs[:n-1]
	}
	x.runs = append(x.runs, next)
}

func merged(a, b []digest) []digest {
	all := make([]digest, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if bytes.Compare(a[0][:], b[0][:]) <= 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

func (x *index) has(d digest) bool {
	if _, ok := x.recent[d]; ok {
		return true
	}
	for _, r := range slices.Backward(x.runs) {
		if r.has(d) {
			return true
		}
	}
	return false
}

// has looks where the digest would be in a run that is spread evenly, and goes on
// from there.
func (r run) has(d digest) bool {
	n := len(r.digests)
	at := int((binary.BigEndian.Uint64(d[:]) >> 32) * uint64(n) >> 32)
	// The place is a few elements off, by the square root of their number.
	step := 1
	low, high := at, at
	for low > 0 && bytes.Compare(r.digests[low][:], d[:]) > 0 {
		low = max(0, low-step)
		step *= 2
	}
	step = 1
	for high < n && bytes.Compare(r.digests[high][:], d[:]) < 0 {
		high = min(n, high+step)
		step *= 2
	}
	_, found := slices.BinarySearchFunc(r.digests[low:min(n, high+1)], d, func(a, b digest) int { return bytes.Compare(a[:], b[:]) })
	return found
}

// forget drops what is older than the retention.
func (x *index) forget(now time.Time) {
	oldest := x.slotOf(now.Add(-x.retention))
	if x.slot < oldest {
		clear(x.recent)
	}
	x.runs = slices.DeleteFunc(x.runs, func(r run) bool { return r.slot < oldest })
}
