package resilience

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestGovernedBreakerLetsNothingThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := newBreaker(t, BreakerConfig{Failures: 1, Probes: 1, OpenFor: time.Second})
		var left time.Duration
		b.Govern(func() time.Duration { return left })
		if !call(b, Success) {
			t.Fatal("rejected although the governor says nothing")
		}
		left = time.Minute
		_, err := b.Allow()
		var open *OpenError
		if !errors.As(err, &open) || open.StaysOpen != time.Minute {
			t.Fatalf("rejected with %v, want the governor's minute", err)
		}
		left = 0
		calls(b, Failure)
		halfOpen(t, b)
		left = time.Minute
		if call(b, Success) {
			t.Fatal("probed although another process does")
		}
		expectState(t, b, Open)
		left = 0
		if !call(b, Success) {
			t.Fatal("not probed")
		}
		expectState(t, b, Closed)
	})
}
