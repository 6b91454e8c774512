package deduptest

import (
	"errors"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// parkOnce fails an event once, then parks it with a second failure.
func (b *rig) parkOnce(l Ledger, k event.EventKey) {
	b.Helper()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Release(b.ctx, c, failure(1, "first"), nil))
	c = b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Park(b.ctx, c, failure(2, "second"), b.letter(k)))
}

func testPark(b *rig) {
	l, k := b.Open(), newKey()
	b.parkOnce(l, k)
	b.wantStored(k, 0, 1)
	if m := b.wantState(l, k, "parked"); m.Failures != 2 || len(m.Attempts) != 2 || m.First == nil || m.First.Error != "first" {
		b.Fatalf("mark of a parked event: %+v", m)
	}
	b.claim(l, request(k, hold), dedup.Parked)

	c := b.claim(l, replay(k, 1), dedup.Claimed)
	if c.Failures != 0 || c.Crashes != 0 || len(c.Attempts) != 0 {
		b.Fatalf("a replay starts with history: %d failures, %d crashes, %+v", c.Failures, c.Crashes, c.Attempts)
	}
	b.claim(b.rival(l), request(k, hold), dedup.Busy)
	b.ok(l.Park(b.ctx, c, failure(1, "again"), b.letter(k)))
	if m := b.wantState(l, k, "parked"); m.Replay != 1 || m.Failures != 1 || m.First == nil || m.First.Error != "first" {
		b.Fatalf("mark after a replay that failed: %+v", m)
	}
	b.claim(l, request(k, hold), dedup.Parked)
	b.claim(l, replay(k, 1), dedup.Parked) // the same replay, delivered again

	c = b.claim(l, replay(k, 2), dedup.Claimed)
	b.ok(l.Complete(b.ctx, c, []*nats.Msg{b.outgoing(k)}))
	if m := b.wantState(l, k, "done"); m.Replay != 2 || m.First == nil || m.First.Error != "first" {
		b.Fatalf("mark after a replay that worked: %+v", m)
	}
	b.claim(l, replay(k, 3), dedup.Done) // a second click
	b.wantStored(k, 1, 1)
}

// testLateReplay is a replay that meets an event which was never marked parked
// (its worker died between letter and mark), and a copy of the original that
// comes while a replay waits for its next attempt.
func testLateReplay(b *rig) {
	l, k := b.Open(), newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Release(b.ctx, c, failure(1, "first"), nil))
	c = b.claim(l, replay(k, 1), dedup.Claimed)
	if c.Failures != 0 {
		b.Fatalf("%d failures at the start of a replay", c.Failures)
	}
	b.ok(l.Release(b.ctx, c, failure(1, "replayed"), nil))
	c = b.claim(l, request(k, hold), dedup.Claimed)
	if c.Failures != 1 {
		b.Fatalf("%d failures, want the replay's one", c.Failures)
	}
	b.ok(l.Park(b.ctx, c, nil, b.letter(k)))
	if m := b.wantState(l, k, "parked"); m.Replay != 1 || m.First.Error != "first" {
		b.Fatalf("mark: %+v", m)
	}
	b.claim(l, replay(k, 1), dedup.Parked)
}

func testLetterRefused(b *rig) {
	l, k := b.Open(), newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	if err := l.Park(b.ctx, c, failure(1, "bad"), b.refused()); err == nil || errors.Is(err, dedup.ErrLeaseLost) {
		b.Fatalf("park without a place for the letter: got %v", err)
	}
	if m := b.wantState(l, k, b.untold("claimed")); m.Failures != 0 {
		b.Fatalf("the mark counts %d failures though nothing was parked", m.Failures)
	}
	b.ok(l.Release(b.ctx, c, failure(1, "bad"), nil))
	c = b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Park(b.ctx, c, nil, b.letter(k)))
	if m := b.wantState(l, k, "parked"); m.Failures != 1 {
		b.Fatalf("%d failures, want 1", m.Failures)
	}
}

func testDiscard(b *rig) {
	l, k := b.Open(), newKey()
	b.ok(l.Discard(b.ctx, consumer, k)) // nothing is known of it
	b.parkOnce(l, k)
	b.ok(l.Discard(b.ctx, consumer, k))
	b.ok(l.Discard(b.ctx, consumer, k))
	b.wantState(l, k, "discarded")
	b.claim(l, request(k, hold), dedup.Parked)
	b.eventually(soon, func() bool { return b.Marks() == 0 })

	k = newKey()
	c := b.claim(l, request(k, hold), dedup.Claimed)
	b.ok(l.Discard(b.ctx, consumer, k)) // not parked: left alone
	b.ok(l.Complete(b.ctx, c, nil))
}

func testTakenBack(b *rig) {
	l, k := b.Open(), newKey()
	takeBack := func(replay int, want bool) {
		b.Helper()
		if got, err := l.TakeBack(b.ctx, consumer, k, replay); err != nil || got != want {
			b.Fatalf("taken back: %v, %v; want %v", got, err, want)
		}
	}
	takeBack(1, false) // nothing is known of it
	b.parkOnce(l, k)
	takeBack(2, true)
	takeBack(2, true)
	takeBack(1, true)
	if m := b.wantState(l, k, "parked"); m.Replay != 2 || m.First == nil {
		b.Fatalf("mark: %+v", m)
	}
	next := b.Open() // an owner that has read the replay before does not look
	b.claim(next, replay(k, 2), dedup.Parked)
	c := b.claim(next, replay(k, 3), dedup.Claimed)
	if !b.Owned {
		takeBack(3, false) // begun
	}
	b.ok(next.Complete(b.ctx, c, nil))
	takeBack(4, false)
	b.wantState(l, k, "done")
}

func testParkedStays(b *rig) {
	l, k := b.Open(), newKey()
	b.parkOnce(l, k)
	c := b.claim(l, request(newKey(), hold), dedup.Claimed) // a mark that ends
	b.ok(l.Complete(b.ctx, c, nil))
	b.eventually(soon, func() bool { return b.Marks() == 1 })
	b.wantState(l, k, "parked")
	b.claim(b.Open(), replay(k, 1), dedup.Claimed)
}
