package members

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// assign gives each partition to one of ids. No order of ids matters, and the
// numbers of two members' partitions differ by one at most.
//
// It is rendezvous hashing with bounds: every member has a weight for every
// partition, and the heaviest pair that both sides are still free for comes
// first. A member that joins or leaves changes no weight of others, so few
// partitions move.
func assign(ids []string, partitions int) map[string][]int {
	owned := make(map[string][]int, len(ids))
	if len(ids) == 0 {
		return owned
	}
	pairs := make([]pair, 0, len(ids)*partitions)
	for _, id := range ids {
		of := hash(id)
		for p := range partitions {
			pairs = append(pairs, pair{weight: mix(of ^ mix(uint64(p)+1)), id: id, partition: p})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.id, b.id), cmp.Compare(a.partition, b.partition))
	})
	least, more := partitions/len(ids), partitions%len(ids) // so many members get one more than least
	taken := make([]bool, partitions)
	for _, x := range pairs {
		n := len(owned[x.id])
		if taken[x.partition] || n > least || n == least && more == 0 {
			continue
		}
		if n == least {
			more--
		}
		taken[x.partition] = true
		owned[x.id] = append(owned[x.id], x.partition)
	}
	for _, own := range owned {
		slices.Sort(own)
	}
	return owned
}

type pair struct {
	weight    uint64
	id        string
	partition int
}

func hash(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return h.Sum64()
}

// mix spreads the bits of x over all of the result, each to about half of them
// (MurmurHash3's last step).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}
