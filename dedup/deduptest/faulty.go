package deduptest

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Method names a method of [dedup.Ledger].
type Method string

// The methods that can fail.
const (
	Claim    Method = "Claim"
	Extend   Method = "Extend"
	Complete Method = "Complete"
	Release  Method = "Release"
	Park     Method = "Park"
)

// When says on which side of its effect a call fails.
type When string

// Both sides.
const (
	Before When = "before" // nothing happened
	After  When = "after"  // it happened, and the answer was lost
)

// Fault is one call that fails.
type Fault struct {
	Method Method
	// Call counts the calls of the method, from 1.
	Call int
	When When
}

// String is "before call 1 of Claim".
func (f Fault) String() string { return fmt.Sprintf("%s call %d of %s", f.When, f.Call, f.Method) }

// ErrInjected is what a call fails with that [Faulty] was told to fail. It
// matches [bus.ErrUnavailable], as a lost connection does.
var ErrInjected = fmt.Errorf("deduptest: injected fault: %w", bus.ErrUnavailable)

// FaultyLedger is a ledger whose calls about one event fail by plan. The others
// are those of the ledger itself.
type FaultyLedger struct {
	dedup.Ledger

	mu    sync.Mutex
	plan  map[Fault]bool // false once it has happened
	calls map[Method]int
}

var _ dedup.Ledger = (*FaultyLedger)(nil)

// Faulty returns l with the planned faults. A fault before a call is an outage
// that the call ran into; one after it is an outage or a crash that came before
// the caller knew the outcome. A Claim that fails after its effect has left a
// claim that nobody runs: as after a crash, the event is claimable when its
// lease ends.
func Faulty(l dedup.Ledger, plan ...Fault) *FaultyLedger {
	f := &FaultyLedger{Ledger: l, plan: map[Fault]bool{}, calls: map[Method]int{}}
	for _, fault := range plan {
		f.plan[fault] = true
	}
	return f
}

// Pending lists the faults that have not happened yet.
func (f *FaultyLedger) Pending() (faults []Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fault, open := range f.plan {
		if open {
			faults = append(faults, fault)
		}
	}
	return faults
}

// Claim fails by plan.
func (f *FaultyLedger) Claim(ctx context.Context, r dedup.Request) (c *dedup.Claim, err error) {
	err = f.call(Claim, func() error {
		c, err = f.Ledger.Claim(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Extend fails by plan.
func (f *FaultyLedger) Extend(ctx context.Context, c *dedup.Claim) error {
	return f.call(Extend, func() error { return f.Ledger.Extend(ctx, c) })
}

// Complete fails by plan.
func (f *FaultyLedger) Complete(ctx context.Context, c *dedup.Claim, out []*nats.Msg) error {
	return f.call(Complete, func() error { return f.Ledger.Complete(ctx, c, out) })
}

// Release fails by plan.
func (f *FaultyLedger) Release(ctx context.Context, c *dedup.Claim, failure *event.Attempt, later *nats.Msg) error {
	return f.call(Release, func() error { return f.Ledger.Release(ctx, c, failure, later) })
}

// Park fails by plan.
func (f *FaultyLedger) Park(ctx context.Context, c *dedup.Claim, failure *event.Attempt, letter *nats.Msg) error {
	return f.call(Park, func() error { return f.Ledger.Park(ctx, c, failure, letter) })
}

func (f *FaultyLedger) call(m Method, do func() error) error {
	f.mu.Lock()
	f.calls[m]++
	n := f.calls[m]
	f.mu.Unlock()
	if err := f.strike(Fault{m, n, Before}); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return f.strike(Fault{m, n, After})
}

func (f *FaultyLedger) strike(fault Fault) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.plan[fault] {
		return nil
	}
	f.plan[fault] = false
	return fmt.Errorf("%w: %v", ErrInjected, fault)
}
