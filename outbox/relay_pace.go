package outbox

import (
	"sync/atomic"
	"time"
)

// pace makes batches smaller on a machine that is too slow for a full batch within a
// lease: its rows would be claimed, given up, and claimed again.
type pace struct {
	halvings atomic.Int32
}

// leastBatch is the smallest that pace makes a batch: in a smaller one the statements
// cost more than the rows.
const leastBatch = 16

// size returns how many rows the next batch takes.
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
