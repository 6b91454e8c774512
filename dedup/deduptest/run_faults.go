package deduptest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// runFaults lets each call of a journey fail, before and after its effect, and
// shows that the event ends with exactly one effect, both when the worker does
// the call again and when the message is delivered again to another worker.
func runFaults(t *testing.T, open Factory) {
	t.Helper()
	journeys := []struct {
		name  string
		calls []Fault // each in turn fails
		parks bool
	}{
		{"handled", []Fault{{Method: Claim, Call: 1}, {Method: Extend, Call: 1}, {Method: Release, Call: 1}, {Method: Claim, Call: 2}, {Method: Complete, Call: 1}}, false},
		{"parked", []Fault{{Method: Claim, Call: 1}, {Method: Release, Call: 1}, {Method: Park, Call: 1}}, true},
	}
	for _, j := range journeys {
		for _, call := range j.calls {
			for _, when := range []When{Before, After} {
				for _, again := range []bool{true, false} {
					fault := Fault{Method: call.Method, Call: call.Call, When: when}
					retry := map[bool]string{true: "same_worker", false: "another_worker"}[again]
					t.Run(fmt.Sprintf("%s/%s/%s", j.name, fault, retry), func(t *testing.T) {
						testFault(newRig(t, open, day), fault, j.parks, again)
					})
				}
			}
		}
	}
}

func testFault(b *rig, fault Fault, parks, again bool) {
	if b.Owned && fault.Method == Claim && fault.When == After {
		again = false // an owner that does not know of its claim is dead
	}
	k := newKey()
	worker := b.Open()
	faulty := Faulty(worker, fault)
	var l dedup.Ledger = faulty
	for deliveries := 0; !b.deliver(l, k, parks, again); deliveries++ {
		if !again && len(faulty.Pending()) == 0 {
			l = b.Open() // the first worker has died of it
		}
		if deliveries > 200 {
			b.Fatal("the event is delivered for ever")
		}
		b.Pass(step)
	}
	if p := faulty.Pending(); len(p) > 0 {
		b.Fatalf("the fault did not happen: %v", p)
	}
	m := b.mark(worker, k)
	if parks {
		b.wantStored(k, 0, 1)
	} else {
		b.wantStored(k, 1, 0)
	}
	if want := map[bool]string{true: "parked", false: "done"}[parks]; m.State != want {
		b.Fatalf("mark is %q, want %q", m.State, want)
	}
	if again && fault.Method != Claim && m.Crashes != 0 {
		b.Fatalf("%d crashes though no worker died", m.Crashes)
	}
	if again && m.Failures != map[bool]int{true: 2, false: 1}[parks] {
		b.Fatalf("mark counts %d failures", m.Failures)
	}
}

// deliver is one delivery: the first run fails, the second works, or parks. It
// returns whether the message may be acknowledged.
func (b *rig) deliver(l dedup.Ledger, k event.EventKey, parks, again bool) bool {
	// settle does a call, once more after a fault if the worker lives on.
	settle := func(call func() error) bool {
		err := call()
		if again && errors.Is(err, ErrInjected) {
			err = call()
		}
		if err != nil && !errors.Is(err, ErrInjected) {
			b.Fatal(err)
		}
		return err == nil
	}
	c, err := l.Claim(b.ctx, request(k, lease))
	switch {
	case errors.Is(err, ErrInjected):
		return false
	case err != nil:
		b.Fatal(err)
	case c.Status == dedup.Busy:
		b.Pass(min(c.RetryIn, 5*step))
		return false
	case c.Status != dedup.Claimed:
		return true
	case !settle(func() error { return l.Extend(b.ctx, c) }):
		return false
	case c.Failures == 0:
		settle(func() error { return l.Release(b.ctx, c, failure(1, "first run"), nil) })
		return false
	case parks:
		return settle(func() error { return l.Park(b.ctx, c, failure(2, "second run"), b.letter(k)) })
	}
	return settle(func() error { return l.Complete(b.ctx, c, []*nats.Msg{b.outgoing(k)}) })
}
