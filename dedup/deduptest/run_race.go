package deduptest

import (
	"sync"
	"sync/atomic"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// testDoubled has 50 events, each twice, and two processes with 8 workers. The
// first run of each event fails.
func testDoubled(b *rig) {
	const events, copies, workers = 50, 2, 8
	type effects struct{ runs, done, atOnce atomic.Int32 }
	seen := map[event.EventKey]*effects{}
	queue := make(chan event.EventKey, events*copies)
	for range events {
		k := newKey()
		seen[k] = &effects{}
		for range copies {
			queue <- k
		}
	}
	var open sync.WaitGroup // copies not acknowledged yet
	open.Add(events * copies)
	deliver := func(l Ledger, k event.EventKey) {
		e := seen[k]
		c, err := l.Claim(b.ctx, request(k, hold))
		switch {
		case err != nil:
			b.Errorf("claim: %v", err)
			open.Done()
		case c.Status == dedup.Done:
			if e.done.Load() != 1 {
				b.Errorf("a copy was acknowledged before the event was done")
			}
			open.Done()
		case c.Status == dedup.Claimed:
			if e.atOnce.Add(1) != 1 {
				b.Errorf("two workers run one event")
			}
			fails := e.runs.Add(1) == 1
			e.atOnce.Add(-1)
			if fails {
				err = l.Release(b.ctx, c, failure(1, "first run"), nil)
				queue <- k
			} else {
				e.done.Add(1)
				err = l.Complete(b.ctx, c, nil)
				open.Done()
			}
			if err != nil {
				b.Errorf("settle: %v", err)
			}
		default:
			queue <- k // busy: later, never acknowledged
		}
	}
	var pool sync.WaitGroup
	one := b.Open()
	for _, process := range []Ledger{one, b.rival(one)} {
		for range workers {
			pool.Go(func() {
				for k := range queue {
					deliver(process, k)
				}
			})
		}
	}
	open.Wait()
	close(queue)
	pool.Wait()
	for k, e := range seen {
		if e.done.Load() != 1 || e.runs.Load() != 2 {
			b.Errorf("event %s: %d effects, %d runs; want 1 and 2", k, e.done.Load(), e.runs.Load())
		}
	}
}

// race lets n workers of two processes claim one key at the same moment.
func (b *rig) race(n int, k event.EventKey, won func(l Ledger, c *dedup.Claim)) (winners int32) {
	one := b.Open()
	processes := [2]Ledger{one, b.rival(one)}
	var claimed atomic.Int32
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		l := processes[i%2]
		all.Go(func() {
			<-start
			c, err := l.Claim(b.ctx, request(k, hold))
			switch {
			case err != nil:
				b.Errorf("claim: %v", err)
			case c.Status == dedup.Claimed:
				claimed.Add(1)
				won(l, c)
			case c.Status != dedup.Busy:
				b.Errorf("claim answered %v, want claimed or busy", c.Status)
			}
		})
	}
	close(start)
	all.Wait()
	return claimed.Load()
}

func testRace(b *rig) {
	for range 20 {
		if n := b.race(20, newKey(), func(Ledger, *dedup.Claim) {}); n != 1 {
			b.Fatalf("%d of 20 workers claimed one event", n)
		}
	}
}

func testContention(b *rig) {
	k := newKey()
	var holders atomic.Int32
	const rounds = 25
	for range rounds {
		n := b.race(20, k, func(l Ledger, c *dedup.Claim) {
			if holders.Add(1) != 1 {
				b.Errorf("two workers hold one event")
			}
			holders.Add(-1)
			if err := l.Release(b.ctx, c, nil, nil); err != nil {
				b.Errorf("release: %v", err)
			}
		})
		if n == 0 {
			b.Fatal("nobody got the event")
		}
	}
	l := b.Open()
	m := b.mark(l, k)
	if m.State != "waiting" && m.State != b.untold("waiting") {
		b.Fatalf("mark is %q", m.State)
	}
	if m.Failures != 0 || m.Crashes != 0 {
		b.Fatalf("contention was counted as failure: %+v", m)
	}
	b.claim(l, request(k, hold), dedup.Claimed)
}

func testReclaim(b *rig) {
	l, k := b.Open(), newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Complete(b.ctx, c, nil))
	abandoned := newKey() // for longer than the retention
	if !b.Owned {         // or the next owner takes it up at once
		b.claim(b.Open(), request(abandoned, hold), dedup.Claimed)
	}
	b.claimWithin(l, request(k, hold), soon)
	if b.Owned {
		return
	}
	if c = b.claimWithin(b.Open(), request(abandoned, hold), soon); c.Crashes != 0 {
		b.Fatalf("%d crashes of a forgotten event", c.Crashes)
	}
}

func testRetention(b *rig) {
	const workers, events = 8, 25 // few at a time: a claim must not outlast the retention
	l := b.Open()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range events {
				k := newKey()
				c, err := l.Claim(b.ctx, request(k, hold))
				if err == nil && c.Status == dedup.Claimed {
					err = l.Complete(b.ctx, c, nil)
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	for range 5 { // given up half-way
		b.claim(l, request(newKey(), hold), dedup.Claimed)
		k := newKey()
		b.ok(l.Release(b.ctx, b.claim(l, request(k, hold), dedup.Claimed), failure(1, "never again"), nil))
	}
	b.eventually(soon, func() bool { return b.Marks() == 0 })
}
