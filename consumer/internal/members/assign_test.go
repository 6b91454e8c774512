package members

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryPartitionHasOneOwnerAndNobodyHasMoreThanHisShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,12}`), 1, 40, rapid.ID).Draw(t, "ids")
		partitions := rapid.IntRange(1, 256).Draw(t, "partitions")
		owned := assign(ids, partitions)
		var all []int
		for id, own := range owned {
			if !slices.Contains(ids, id) {
				t.Fatalf("%s is no member and owns %v", id, own)
			}
			if !slices.IsSorted(own) {
				t.Fatalf("%s owns %v, which is not sorted", id, own)
			}
			all = append(all, own...)
		}
		for _, id := range ids {
			if n, least := len(owned[id]), partitions/len(ids); n < least || n > least+min(1, partitions%len(ids)) {
				t.Fatalf("%s owns %d of %d partitions among %d members", id, n, partitions, len(ids))
			}
		}
		slices.Sort(all)
		for p := range partitions {
			if len(all) != partitions || all[p] != p {
				t.Fatalf("owned are %v, want 0 to %d once each", all, partitions-1)
			}
		}
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		if again := assign(ids, partitions); !equal(owned, again) {
			t.Fatalf("in another order of ids the owners are %v, before %v", again, owned)
		}
	})
}

// A member that joins takes its share at least; one that leaves gives its own away.
func TestFewPartitionsMoveWhenAMemberComesOrGoes(t *testing.T) {
	t.Parallel()
	const partitions, rounds = 32, 300
	random := rand.New(rand.NewPCG(1, 2))
	for members := 1; members <= 6; members++ {
		moved, needed, most := 0, 0, 0.0
		for range rounds {
			var ids []string
			for range members + 1 {
				ids = append(ids, fmt.Sprintf("%012x", random.Uint64()))
			}
			few, many := owners(assign(ids[:members], partitions)), owners(assign(ids, partitions))
			n, must := 0, 0
			for p := range partitions {
				if few[p] != many[p] {
					n++
				}
				if many[p] == ids[members] {
					must++
				}
			}
			moved, needed, most = moved+n, needed+must, max(most, float64(n)/float64(must))
		}
		ratio := float64(moved) / float64(needed)
		t.Logf("%d members and one: %.2f times the moves that are needed, at most %.2f", members, ratio, most)
		if ratio > 1.6 {
			t.Errorf("%d members and one: %.2f times the moves that are needed", members, ratio)
		}
	}
}

func owners(owned map[string][]int) map[int]string {
	by := map[int]string{}
	for id, own := range owned {
		for _, p := range own {
			by[p] = id
		}
	}
	return by
}

func equal(a, b map[string][]int) bool {
	for id := range a {
		if !slices.Equal(a[id], b[id]) {
			return false
		}
	}
	return len(a) == len(b)
}
