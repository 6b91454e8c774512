package deduptest

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Run runs the suite against the backends that open makes, one a test. Its
// tests are parallel; those that wait for the end of a lease or a retention
// take one to five seconds on a backend that cannot move its clock.
func Run(t *testing.T, open Factory) {
	t.Helper()
	tests := []struct {
		name      string
		retention time.Duration
		run       func(b *rig)
	}{
		{"new_then_done_then_duplicate", day, testDuplicate},
		{"same_id_of_two_sources", day, testSources},
		{"consumers_are_independent", day, testConsumers},
		{"stalled_worker_changes_nothing", day, testFencing},
		{"stalled_worker_finds_out_before_it_emits", day, testSurface},
		{"failure_is_claimable_at_once", day, testRelease},
		{"crash_waits_for_the_lease_not_the_retention", day, testCrash},
		{"renewals_prevent_a_steal", day, testRenewal},
		{"unspent_release", day, testUnspent},
		{"history_is_bounded", day, testHistory},
		{"ended_claims", day, testEnded},
		{"unfit_requests_are_refused", day, testRequests},
		{"emitted_before_done", day, testEmitted},
		{"parked_and_replayed", day, testPark},
		{"replay_while_under_way", day, testLateReplay},
		{"letter_that_cannot_be_stored", day, testLetterRefused},
		{"discarded", short, testDiscard},
		{"taken_back", day, testTakenBack},
		{"parked_outlives_the_retention", short, testParkedStays},
		{"doubled_events_have_one_effect", day, testDoubled},
		{"retention_frees_keys", short, testRetention},
		{"one_winner", day, testRace},
		{"claim_and_release_in_a_loop", day, testContention},
		{"claimable_again_after_expiry", short, testReclaim},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(newRig(t, open, tt.retention)) })
	}
	t.Run("faults", func(t *testing.T) { runFaults(t, open) })
}

func testDuplicate(b *rig) {
	l, k := b.Open(), newKey()
	if m, known, err := l.Mark(b.ctx, consumer, k); err != nil || known {
		b.Fatalf("mark of an unknown event: %+v, %v, %v", m, known, err)
	}
	c := b.claim(l, request(k, hold), dedup.Claimed)
	if c.Failures != 0 || c.Crashes != 0 || len(c.Attempts) != 0 {
		b.Fatalf("a new event has a history: %+v", c.Attempts)
	}
	b.wantState(l, k, b.untold("claimed"))
	b.claim(l, request(k, hold), dedup.Busy)
	b.claim(b.rival(l), request(k, hold), dedup.Busy)
	b.ok(l.Complete(b.ctx, c, nil))
	b.wantState(l, k, "done")
	b.claim(l, request(k, hold), dedup.Done)
	b.claim(b.Open(), replay(k, 3), dedup.Done)
}

func testSources(b *rig) {
	l := b.Open()
	for _, e := range [][2]string{{"/shop-a", "1"}, {"/shop-b", "1"}, {"/a", "b/c"}, {"/a/b", "c"}} {
		c := b.claim(l, request(event.NewEventKey(e[0], e[1]), hold), dedup.Claimed)
		b.ok(l.Complete(b.ctx, c, nil))
	}
}

func testConsumers(b *rig) {
	l := b.Open()
	for range 20 {
		k := newKey()
		for _, name := range []event.Consumer{consumer, other} {
			c := b.claim(l, dedup.Request{Consumer: name, Key: k, Lease: hold, Redelivered: true}, dedup.Claimed)
			b.ok(l.Complete(b.ctx, c, nil))
		}
	}
}

// stall claims for a worker that then stalls, and takes the event over.
func (b *rig) stall(k event.EventKey) (staller Ledger, stale *dedup.Claim, taker Ledger, fresh *dedup.Claim) {
	b.Helper()
	staller, taker = b.Open(), b.Open()
	stale = b.claim(staller, request(k, lease), dedup.Claimed)
	fresh = b.claimWithin(taker, request(k, hold), lease+margin)
	crashes := 1
	if b.Owned { // nothing has told that the event started
		crashes = 0
	}
	if fresh.Crashes != crashes {
		b.Fatalf("%d crashes, want %d", fresh.Crashes, crashes)
	}
	return staller, stale, taker, fresh
}

func testFencing(b *rig) {
	k := newKey()
	a, stale, t, fresh := b.stall(k)
	before := b.mark(t, k)
	for range 2 { // the first answer does not change the second
		b.lost("complete", a.Complete(b.ctx, stale, nil))
		b.lost("extend", a.Extend(b.ctx, stale))
		b.lost("release", a.Release(b.ctx, stale, failure(1, "late"), nil))
		b.lost("unspent release", a.Release(b.ctx, stale, nil, nil))
		b.lost("park", a.Park(b.ctx, stale, failure(1, "late"), b.letter(k)))
	}
	if after := b.mark(t, k); !after.At.Equal(before.At) || after.State != b.untold("claimed") || after.Failures != 0 {
		b.Fatalf("a stale worker changed the mark: %+v, was %+v", after, before)
	}
	b.ok(t.Release(b.ctx, fresh, failure(1, "second worker failed too"), nil))
	b.lost("complete", a.Complete(b.ctx, stale, nil))
	c := b.claim(t, request(k, hold), dedup.Claimed)
	b.ok(t.Complete(b.ctx, c, nil))
	b.lost("park", a.Park(b.ctx, stale, nil, b.letter(k)))
	b.wantState(t, k, "done")
}

func testSurface(b *rig) {
	k := newKey()
	a, stale, _, _ := b.stall(k)
	b.lost("complete", a.Complete(b.ctx, stale, []*nats.Msg{b.outgoing(k)}))
	b.lost("park", a.Park(b.ctx, stale, nil, b.letter(k)))
	b.wantStored(k, 0, 0)
}

func testRelease(b *rig) {
	l, k := b.Open(), newKey()
	first := failure(1, "first")
	c := b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Release(b.ctx, c, first, nil))
	b.wantState(l, k, "waiting")
	c = b.claim(b.Open(), request(k, hold), dedup.Claimed) // not at the end of the lease
	if c.Failures != 1 || c.Crashes != 0 || len(c.Attempts) != 1 || c.Attempts[0] != *first {
		b.Fatalf("recorded %d failures, %d crashes, attempts %+v; want %+v", c.Failures, c.Crashes, c.Attempts, *first)
	}
}

func testCrash(b *rig) {
	k := newKey()
	if b.Owned { // whoever comes after a dead owner has events say that they start
		_ = b.claim(b.Open(), request(k, hold), dedup.Claimed)
	}
	_ = b.claim(b.Open(), request(k, lease), dedup.Claimed) // and its worker dies
	start := time.Now()
	c := b.claimWithin(b.Open(), request(k, hold), lease+margin)
	if c.Crashes != 1 || c.Failures != 0 {
		b.Fatalf("%d crashes and %d failures after one crash (%v)", c.Crashes, c.Failures, time.Since(start))
	}
}

func testRenewal(b *rig) {
	if b.Owned { // there are no leases: the first worker keeps the event however long it is silent
		l, k := b.Open(), newKey()
		c := b.claim(l, request(k, lease), dedup.Claimed)
		b.Pass(lease + margin)
		b.ok(l.Complete(b.ctx, c, nil))
		return
	}
	a, t := b.Open(), b.Open()
	longest := 32 * lease
	for lease := lease; lease <= longest; lease *= 2 {
		if b.renew(a, t, lease) {
			return
		}
	}
	b.Fatalf("this machine stalls for longer than a lease of %v", longest)
}

// renew renews a claim of a for three leases while t tries to get it, then
// leaves it to t. It returns false if this process stalled for so long that
// the lease may have ended rightly.
func (b *rig) renew(a, t Ledger, lease time.Duration) bool {
	k := newKey()
	c := b.claim(a, request(k, lease), dedup.Claimed)
	for renewed, passed := time.Now(), time.Duration(0); passed < 3*lease; passed += lease / 10 {
		b.Pass(lease / 10)
		before := time.Now()
		err := a.Extend(b.ctx, c)
		taken, terr := t.Claim(b.ctx, request(k, lease))
		if time.Since(renewed) >= lease {
			return false
		}
		if err != nil || terr != nil || taken.Status != dedup.Busy {
			b.Fatalf("a lease renewed in time was taken over: %v, %v, %v", err, terr, taken)
		}
		renewed = before
	}
	if c := b.claimWithin(t, request(k, lease), lease+margin); c.Crashes != 1 {
		b.Fatalf("%d crashes, want 1", c.Crashes)
	}
	return true
}

func testUnspent(b *rig) {
	l, k := b.Open(), newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Release(b.ctx, c, failure(1, "spent"), nil))
	for range 3 {
		c = b.claim(l, request(k, hold), dedup.Claimed)
		b.ok(l.Release(b.ctx, c, nil, nil))
	}
	c = b.claim(b.Open(), request(k, hold), dedup.Claimed)
	if c.Failures != 1 || c.Crashes != 0 || len(c.Attempts) != 1 {
		b.Fatalf("%d failures, %d crashes, %d attempts; want 1, 0, 1", c.Failures, c.Crashes, len(c.Attempts))
	}
}

func testHistory(b *rig) {
	l, k := b.Open(), newKey()
	long := make([]rune, 600)
	for i := range long {
		long[i] = 'é' // two bytes
	}
	const failures = 14
	for i := 1; i <= failures; i++ {
		c := b.claim(l, request(k, hold), dedup.Claimed)
		b.ok(l.Release(b.ctx, c, failure(i, "x"+string(long)), nil))
	}
	c := b.claim(l, request(k, hold), dedup.Claimed)
	if c.Failures != failures || len(c.Attempts) != 10 {
		b.Fatalf("%d failures and %d attempts, want %d and 10", c.Failures, len(c.Attempts), failures)
	}
	want := []int{1, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	for i, a := range c.Attempts {
		if a.Number != want[i] {
			b.Fatalf("attempt %d is number %d, want %d", i, a.Number, want[i])
		}
		if text := "x" + string(long[:511]); a.Error != text {
			b.Fatalf("error text has %d bytes, want %d", len(a.Error), len(text))
		}
	}
}

func testEnded(b *rig) {
	l, k := b.Open(), newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	out := []*nats.Msg{b.outgoing(k)}
	b.ok(l.Complete(b.ctx, c, out))
	b.ok(l.Complete(b.ctx, c, out))
	b.ok(l.Extend(b.ctx, c))
	b.lost("release after complete", l.Release(b.ctx, c, failure(1, "late"), nil))
	b.lost("park after complete", l.Park(b.ctx, c, nil, b.letter(k)))
	b.wantState(l, k, "done")
	b.wantStored(k, 1, 0)
	b.lost("complete of a duplicate", l.Complete(b.ctx, b.claim(l, request(k, hold), dedup.Done), nil))

	k = newKey()
	c = b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Release(b.ctx, c, failure(1, "once"), nil))
	b.ok(l.Release(b.ctx, c, failure(1, "once"), nil))
	b.ok(l.Extend(b.ctx, c))
	b.lost("complete after release", l.Complete(b.ctx, c, nil))
	if m := b.wantState(l, k, "waiting"); m.Failures != 1 {
		b.Fatalf("%d failures after one release, done twice", m.Failures)
	}
}

func testRequests(b *rig) {
	l, k := b.Open(), newKey()
	for _, r := range []dedup.Request{
		request(k, 0), request(k, lease-1), {Consumer: consumer, Key: k, Lease: lease, Replay: -1},
	} {
		if c, err := l.Claim(b.ctx, r); !errors.Is(err, dedup.ErrConfig) {
			b.Fatalf("claim %+v: got %v, %v; want ErrConfig", r, c, err)
		}
	}
	for _, bad := range []event.EventKey{"", "*", ">", "a.b", "a b", "A"} {
		if _, _, err := l.Mark(b.ctx, consumer, bad); !errors.Is(err, dedup.ErrConfig) {
			b.Fatalf("mark of key %q: got %v, want ErrConfig", bad, err)
		}
	}
	if err := l.Discard(b.ctx, ">", k); !errors.Is(err, event.ErrInvalidConsumer) {
		b.Fatalf("discard: got %v, want ErrInvalidConsumer", err)
	}
}

func testEmitted(b *rig) {
	l, k := b.Open(), newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	if err := l.Complete(b.ctx, c, []*nats.Msg{b.outgoing(k), b.refused()}); err == nil || errors.Is(err, dedup.ErrLeaseLost) {
		b.Fatalf("complete with a message that cannot be stored: got %v", err)
	}
	b.wantState(l, k, b.untold("claimed"))
	b.ok(l.Complete(b.ctx, c, []*nats.Msg{b.outgoing(k)}))
	b.wantStored(k, 1, 0)
	b.wantState(l, k, "done")
}
