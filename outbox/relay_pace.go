package outbox

import (
	"sync/atomic"
	"time"
)

// pace is how many rows a claim takes. On a machine that is too slow for a full
// batch within a lease rows would be claimed, given up, and claimed again.
type pace struct {
	halvings atomic.Int32
}

// leastBatch is as small as it makes sense for a batch to be: below, its
// statements cost more than its rows.
const leastBatch = 16

// size is that of the next batch, not below leastBatch for slowness.
func (p *pace) size(batch int) int { return max(batch>>p.halvings.Load(), min(batch, leastBatch)) }

// adapt halves the next batches after one that took half a lease, and doubles
// them after one that took an eighth.
func (p *pace) adapt(took, lease time.Duration, batch int) {
	n := p.halvings.Load()
	switch {
	case took > lease/2 && batch>>n > leastBatch:
		p.halvings.CompareAndSwap(n, n+1)
	case took < lease/8 && n > 0:
		p.halvings.CompareAndSwap(n, n-1)
	}
}
