package backoff_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

func TestFullJitterStaysWithinItsBoundsAtAnyTry(t *testing.T) {
	t.Parallel()
	tries := []int{1 << 31, math.MaxInt}
	for n := range 201 {
		tries = append(tries, n)
	}
	for _, p := range []struct{ base, most time.Duration }{
		{200 * time.Millisecond, 30 * time.Second},
		{1, math.MaxInt64},
		{time.Second, time.Second},
		{3, 4},
		{0, time.Second},
		{time.Minute, time.Second},
	} {
		for _, n := range tries {
			ceiling := min(float64(p.most), float64(p.base)*math.Pow(2, float64(n)))
			if got := backoff.FullJitter(p.base, p.most, n, 0); got != 0 {
				t.Errorf("%+v try %d: lowest delay is %v, want 0", p, n, got)
			}
			top := backoff.FullJitter(p.base, p.most, n, math.Nextafter(1, 0))
			if top < 0 || top > p.most || float64(top) > ceiling+1 {
				t.Errorf("%+v try %d: highest delay is %v, want within [0, %v]", p, n, top, time.Duration(ceiling))
			}
			if p.base > 0 && p.base <= p.most && float64(top) < 0.99*ceiling-1 {
				t.Errorf("%+v try %d: highest delay is %v, want about %v", p, n, top, time.Duration(ceiling))
			}
		}
	}
}

func TestFullJitterSpreadsOverTheWholeInterval(t *testing.T) {
	t.Parallel()
	const base, most = 500 * time.Millisecond, 5 * time.Second
	random := rand.New(rand.NewPCG(1, 2))
	var tenths [10]int
	for range 1000 {
		tenths[int(10*backoff.FullJitter(base, most, 10, random.Float64())/(most+1))]++
	}
	for i, n := range tenths {
		if n < 50 {
			t.Errorf("%d of 1,000 delays fall in tenth %d of the interval, want about 100", n, i)
		}
	}
}

func TestAround(t *testing.T) {
	t.Parallel()
	for range 1000 {
		if got := backoff.Around(time.Second); got < time.Second/2 || got >= 3*time.Second/2 {
			t.Fatalf("%v is not around 1s", got)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		if !backoff.Wait(ctx, 2*time.Second) || time.Since(begin) != 2*time.Second {
			t.Errorf("waited %v for 2s", time.Since(begin))
		}
		if backoff.Wait(ctx, time.Minute) || time.Since(begin) != 3*time.Second {
			t.Errorf("waited until %v after the begin, its context ended after 3s", time.Since(begin))
		}
	})
}
