package resilience

import (
	"testing"
	"time"
	"unsafe"
)

// setWallClock moves the breaker's epoch on the wall clock alone: to the breaker
// that is what setting the computer's clock by step looks like. It knows how
// time.Time lies in memory: with a monotonic reading, the first word holds the
// seconds of the wall clock from bit 30 on.
func setWallClock(t *testing.T, b *Breaker, step time.Duration) {
	t.Helper()
	before := b.epoch.Round(0) // the wall clock's reading alone
	wall := (*uint64)(unsafe.Pointer(&b.epoch))
	*wall -= uint64(step/time.Second) << 30
	if got := before.Sub(b.epoch.Round(0)); got != step {
		t.Fatalf("the wall clock was set by %v, want %v", got, step)
	}
}

func TestTimeOpenFollowsElapsedTimeWhateverTheWallClockSays(t *testing.T) {
	t.Parallel()
	const open = 200 * time.Millisecond
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		b, _ := newBreaker(t, BreakerConfig{Failures: 1, Probes: 1})
		start := time.Now()
		b.Open(open)
		setWallClock(t, b, step)
		poll := time.NewTicker(time.Millisecond)
		for !call(b, Success) {
			if time.Since(start) > time.Minute {
				t.Fatalf("not let through in a minute after a step of %v", step)
			}
			<-poll.C
		}
		poll.Stop()
		if took := time.Since(start); took < open {
			t.Fatalf("let through after %v after a step of %v", took, step)
		}
	}
}
