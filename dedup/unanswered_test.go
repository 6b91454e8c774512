package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
)

// flakyLedger is a ledger whose store can be made flaky.
type flakyLedger interface {
	deduptest.Ledger
	MakeFlaky(fail func(write int) (before, after bool)) *dedup.Flaky
}

// backends are those of this package.
func backends(tb testing.TB) map[string]deduptest.Factory {
	tb.Helper()
	return map[string]deduptest.Factory{"KV": kvFactory(tb), "Memory": memoryBackend}
}

// A worker whose write, or whose answer, was lost does the call again. Each
// write of a journey is lost in turn: nothing counts twice, no lease has to
// end, and no crash is counted, for nothing crashed.
func TestUnanswered_writes_are_resolved(t *testing.T) {
	t.Parallel()
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend := open(t, 24*time.Hour)
			for _, park := range []bool{false, true} {
				for _, stored := range []bool{false, true} {
					for n := 1; n > 0; n++ {
						title := fmt.Sprintf("write %d, parks %v, stored %v", n, park, stored)
						if !loseWrite(t, backend, n, park, stored, title) {
							break // the journey has fewer writes
						}
					}
				}
			}
		})
	}
}

// loseWrite loses the n-th write of a journey and reports whether there was one.
func loseWrite(t *testing.T, backend deduptest.Backend, n int, park, stored bool, title string) bool {
	t.Helper()
	l, k, ctx := backend.Open(), event.NewEventKey(t.Name(), title), t.Context()
	flaky := l.(flakyLedger).MakeFlaky(func(write int) (before, after bool) {
		return write == n && !stored, write == n && stored
	})
	out := &nats.Msg{Subject: backend.Names.EventSubject("payment.captured.v1", event.Key(k)), Header: nats.Header{nats.MsgIdHdr: {string(k)}}}
	letter := &nats.Msg{Subject: backend.Names.DeadLetterSubject("payment", event.ReasonPermanent, k), Header: nats.Header{nats.MsgIdHdr: {string(k)}}}
	failure := &event.Attempt{Number: 1, Error: "failed"}

	claim := func() (c *dedup.Claim) {
		again(t, title, func() (err error) { c, err = l.Claim(ctx, claimOf(k)); return err })
		if c.Status != dedup.Claimed || c.Crashes != 0 {
			t.Fatalf("%s: claim: %v after %d crashes", title, c.Status, c.Crashes)
		}
		return c
	}
	c := claim()
	again(t, title, func() error { return l.Extend(ctx, c) })
	again(t, title, func() error { return l.Release(ctx, c, failure, nil) })
	c = claim()
	if c.Failures != 1 {
		t.Fatalf("%s: %d failures, want 1", title, c.Failures)
	}
	again(t, title, func() error { return l.Release(ctx, c, nil, nil) })
	c = claim()
	want := "done"
	if park {
		want = "parked"
		again(t, title, func() error { return l.Park(ctx, c, nil, letter) })
	} else {
		again(t, title, func() error { return l.Complete(ctx, c, []*nats.Msg{out}) })
	}
	m, _, err := l.Mark(ctx, "payment", k)
	if err != nil || m.State != want || m.Failures != 1 || m.Crashes != 0 {
		t.Fatalf("%s: mark %+v, %v", title, m, err)
	}
	return flaky.Writes() >= n
}

func again(t *testing.T, title string, call func() error) {
	t.Helper()
	err := call()
	if errors.Is(err, bus.ErrUnavailable) {
		err = call()
	}
	if err != nil {
		t.Fatalf("%s: %v", title, err)
	}
}

// An outage that ends every call with an error leaves claims behind. When it
// is over their own worker takes them up at once and counts no crash.
func TestUnanswered_release_is_no_crash(t *testing.T) {
	t.Parallel()
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, k, ctx := open(t, 24*time.Hour).Open(), event.NewEventKey("/shop", t.Name()), t.Context()
			down := false
			l.(flakyLedger).MakeFlaky(func(int) (before, after bool) { return down, false })
			c, err := l.Claim(ctx, claimOf(k))
			if err != nil {
				t.Fatal(err)
			}
			down = true
			if err := l.Complete(ctx, c, nil); !errors.Is(err, bus.ErrUnavailable) {
				t.Fatalf("complete: %v", err)
			}
			if err := l.Release(ctx, c, nil, nil); !errors.Is(err, bus.ErrUnavailable) {
				t.Fatalf("release: %v", err)
			}
			for range 20 {
				if _, err := l.Claim(ctx, claimOf(k)); !errors.Is(err, bus.ErrUnavailable) {
					t.Fatalf("claim: %v", err)
				}
			}
			down = false
			next, err := l.Claim(ctx, claimOf(k))
			if err != nil || next.Status != dedup.Claimed || next.Crashes != 0 {
				t.Fatalf("claim: %+v, %v", next, err)
			}
			if err := l.Complete(ctx, c, nil); !errors.Is(err, dedup.ErrLeaseLost) {
				t.Fatalf("the claim given up still works: %v", err)
			}
			if err := l.Complete(ctx, next, nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Twenty workers of two processes, a third of whose writes go wrong.
func TestUnanswered_writes_under_load(t *testing.T) {
	t.Parallel()
	const events, workers = 40, 20
	backend := memoryBackend(t, 24*time.Hour)
	queue := make(chan event.EventKey, events)
	var open, pool sync.WaitGroup
	open.Add(events)
	for i := range events {
		queue <- event.NewEventKey(t.Name(), fmt.Sprint(i))
	}
	handle := func(ctx context.Context, l deduptest.Ledger, k event.EventKey) bool {
		c, err := l.Claim(ctx, claimOf(k))
		if err != nil || c.Status == dedup.Busy {
			return false
		}
		if c.Status == dedup.Done {
			return true
		}
		out := &nats.Msg{Subject: "events.out", Header: nats.Header{nats.MsgIdHdr: {string(k)}}}
		if err := l.Complete(ctx, c, []*nats.Msg{out}); err != nil {
			if err := l.Release(ctx, c, nil, nil); err != nil {
				return false
			}
			return false
		}
		return true
	}
	for range 2 {
		l := backend.Open()
		l.(flakyLedger).MakeFlaky(func(int) (before, after bool) {
			r := rand.IntN(6)
			return r == 0, r == 1
		})
		for range workers / 2 {
			pool.Go(func() {
				for k := range queue {
					if handle(t.Context(), l, k) {
						open.Done()
						continue
					}
					backend.Pass(time.Second) // leases of the other process end now and then
					queue <- k
				}
			})
		}
	}
	open.Wait()
	close(queue)
	pool.Wait()
	if n := backend.Stored("events.out"); n != events {
		t.Fatalf("%d messages stored for %d events", n, events)
	}
}

// A direct get may be answered by a replica that has not seen the write whose
// conflict made us read. It must not be taken for another worker's mark, and
// not for a crash.
func TestLagging_replica(t *testing.T) {
	t.Parallel()
	backend, ctx := memoryBackend(t, 24*time.Hour), t.Context()
	for _, verb := range []string{"extend", "complete", "release", "park"} {
		l, k, lost := backend.Open(), event.NewEventKey("/shop", verb), false
		flaky := l.(flakyLedger).MakeFlaky(func(int) (before, after bool) { return false, lost })
		claim := func(want dedup.Status) *dedup.Claim {
			t.Helper()
			c, err := l.Claim(ctx, claimOf(k))
			if err != nil || c.Status != want || c.Crashes != 0 {
				t.Fatalf("%s: claim: %+v, %v; want %v", verb, c, err, want)
			}
			return c
		}
		first := claim(dedup.Claimed)
		if err := l.Release(ctx, first, nil, nil); err != nil {
			t.Fatal(err)
		}
		c := claim(dedup.Claimed)
		settle := map[string]func() error{
			"extend":   func() error { return l.Extend(ctx, c) },
			"complete": func() error { return l.Complete(ctx, c, nil) },
			"release":  func() error { return l.Release(ctx, c, &event.Attempt{}, nil) },
			"park":     func() error { return l.Park(ctx, c, nil, &nats.Msg{Subject: "dlq.x"}) },
		}[verb]
		lost = true
		if err := settle(); !errors.Is(err, bus.ErrUnavailable) {
			t.Fatalf("%s: got %v, want ErrUnavailable", verb, err)
		}
		lost = false
		for behind := 3; behind > 0; behind-- {
			flaky.Lag(behind)
			if err := settle(); !errors.Is(err, bus.ErrUnavailable) {
				t.Fatalf("%s, %d writes behind: got %v, want ErrUnavailable", verb, behind, err)
			}
			claim(dedup.Busy)
		}
		flaky.Lag(0)
		if err := settle(); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
	}
}

// The same while an outage has left a claim behind.
func TestLagging_replica_and_lost_claim(t *testing.T) {
	t.Parallel()
	l, k, ctx := memoryBackend(t, 24*time.Hour).Open(), event.NewEventKey("/shop", "1"), t.Context()
	lost := true
	flaky := l.(flakyLedger).MakeFlaky(func(int) (before, after bool) { return false, lost })
	if _, err := l.Claim(ctx, claimOf(k)); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("claim: %v", err)
	}
	lost = false
	flaky.Lag(1)
	if c, err := l.Claim(ctx, claimOf(k)); err != nil || c.Status != dedup.Busy {
		t.Fatalf("claim: %+v, %v; want busy", c, err)
	}
	flaky.Lag(0)
	if c, err := l.Claim(ctx, claimOf(k)); err != nil || c.Status != dedup.Claimed || c.Crashes != 0 {
		t.Fatalf("claim: %+v, %v; want claimed", c, err)
	}
}

func TestWorker_clocks_a_minute_apart(t *testing.T) {
	t.Parallel()
	deduptest.Run(t, func(t *testing.T, retention time.Duration) deduptest.Backend {
		t.Helper()
		backend := memoryBackend(t, retention)
		open, fast := backend.Open, false
		backend.Open = func() deduptest.Ledger {
			fast = !fast
			skew := -time.Minute
			if fast {
				skew = time.Minute
			}
			return open().(*dedup.Memory).PeerWithClock(skew)
		}
		return backend
	})
}
