package dedup

import (
	"encoding/binary"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The index is a set: what was added is in it until its time is over, and is
// forgotten within an eighth of the retention, when the next run of events is made.
func TestIndexIsASetThatForgets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		const retention = 8 * time.Hour
		x := newIndex(retention)
		now := time.Unix(1_790_000_000, 0)
		added := map[digest]time.Time{} // when last
		var all []digest
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				// Hashes are spread evenly; the index has to be right for those that are not, too.
				near := rapid.Bool().Draw(rt, "near each other")
				late := time.Duration(rapid.IntRange(0, 600).Draw(rt, "late")) * time.Second
				for range rapid.IntRange(1, 700).Draw(rt, "events") {
					var d digest
					binary.BigEndian.PutUint64(d[8:], rapid.Uint64().Draw(rt, "digest"))
					if !near {
						copy(d[:8], d[8:])
					}
					x.add(d, now.Add(-late))
					if at := now.Add(-late); at.After(added[d]) {
						added[d] = at
					}
					all = append(all, d)
				}
			},
			"again": func(rt *rapid.T) {
				if len(all) > 0 {
					d := rapid.SampledFrom(all).Draw(rt, "digest")
					x.add(d, now)
					added[d] = now
				}
			},
			"pass": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(rt, "minutes")) * time.Minute)
				x.forget(now)
			},
			"": func(rt *rapid.T) {
				for d, at := range added {
					switch age := now.Sub(at); {
					case age <= retention:
						if !x.has(d) {
							rt.Fatalf("%x is forgotten after %v", d, age)
						}
					case age > retention+retention/slots+10*time.Minute && x.has(d):
						if _, recent := x.recent[d]; !recent { // those wait for the next run
							rt.Fatalf("%x is known after %v", d, age)
						}
					}
				}
				var never digest
				binary.BigEndian.PutUint64(never[:], rapid.Uint64().Draw(rt, "never"))
				never[15] = 1
				if _, was := added[never]; !was && x.has(never) {
					rt.Fatalf("%x was never added", never)
				}
			},
		})
	})
}
