// Package backoff says how long to wait before another try, and waits.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// FullJitter is the delay before try n+1, n counted from 0: uniform in
// [0, min(most, base * 2^n)], so that those who failed together do not come back
// together. random is uniform in [0, 1].
func FullJitter(base, most time.Duration, n int, random float64) time.Duration {
	ceiling := most
	// Compared before shifting: base << n overflows from n = 63 on at the latest.
	if base <= most>>n {
		ceiling = base << n
	}
	return min(time.Duration(random*float64(ceiling)), ceiling) // a float of a very long time is rounded
}

// Around is uniform in [d/2, 3d/2): for what is done again and again, so that
// processes which started together do not do it together.
func Around(d time.Duration) time.Duration {
	return time.Duration((0.5 + rand.Float64()) * float64(d)) //nolint:gosec // jitter
}

// Wait waits for d. It returns false at once when ctx ends before.
func Wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
