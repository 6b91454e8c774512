package dedup

import (
	"strconv"
	"testing"
	"time"
)

func TestLive_forgets_abandoned_holds(t *testing.T) {
	t.Parallel()
	var l live
	now := time.Unix(0, 0)
	for i := range 100_000 {
		key := strconv.Itoa(i)
		l.reserve(key, key, time.Second, now)
		if i%2 == 0 {
			l.lose(key, key)
		}
		now = now.Add(100 * time.Millisecond)
	}
	// An hour of lost claims, 5 a second, and a second of others.
	if n := len(l.holds); n > 2*(5*3600+100)+minSweep {
		t.Fatalf("%d holds are kept", n)
	}
}

func TestLive_answers_copies_of_a_running_event(t *testing.T) {
	t.Parallel()
	var l live
	now := time.Unix(0, 0)
	l.reserve("k", "one", time.Minute, now)
	if _, retryIn := l.reserve("k", "two", time.Minute, now); retryIn != retryMargin {
		t.Errorf("while the answer is on its way: retry in %v", retryIn)
	}
	l.renew("k", "one", now.Add(time.Minute))
	if _, retryIn := l.reserve("k", "two", time.Minute, now.Add(20*time.Second)); retryIn != 40*time.Second+retryMargin {
		t.Errorf("while it runs: retry in %v", retryIn)
	}
	l.drop("k", "one")
	if _, retryIn := l.reserve("k", "two", time.Minute, now); retryIn != 0 {
		t.Errorf("when it has ended: retry in %v", retryIn)
	}
}

func TestLive_late_calls_of_an_overtaken_claim(t *testing.T) {
	t.Parallel()
	var l live
	now := time.Unix(0, 0)
	l.reserve("k", "old", time.Second, now)
	now = now.Add(2 * time.Second)
	if past, retryIn := l.reserve("k", "new", time.Minute, now); retryIn != 0 || len(past) != 0 {
		t.Fatalf("an ended hold: past %v, retry in %v", past, retryIn)
	}
	l.renew("k", "old", now.Add(time.Hour))
	l.lose("k", "old")
	l.drop("k", "old")
	if h := l.holds["k"]; h.by != "new" || h.lost || !h.until.Equal(now.Add(time.Minute)) {
		t.Fatalf("the old claim changed the new one's hold: %+v", h)
	}
}
