package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// The tests of this file prove the crash-gap table of DESIGN.md, one a gap: a
// process dies between two steps, and a fresh one finishes; with each ledger.
// Deaths in the middle of what a ledger sends are in gap_completing_test.go,
// gap_fail_test.go, gap_partition_test.go and sql_gap_test.go.

var errCrashed = errors.New("the process is dead")

// tapped lets a test come between the steps of a ledger.
type tapped struct {
	dedup.Ledger
	onClaim    func(do func() error) error
	onComplete func(out []*nats.Msg, do func() error) error
	onRelease  func(do func() error) error
	onPark     func(letter *nats.Msg, do func() error) error
}

func (l *tapped) Claim(ctx context.Context, r dedup.Request) (c *dedup.Claim, err error) {
	do := func() error {
		c, err = l.Ledger.Claim(ctx, r)
		return err
	}
	if l.onClaim != nil {
		return c, l.onClaim(do)
	}
	return c, do()
}

func (l *tapped) Complete(ctx context.Context, c *dedup.Claim, out []*nats.Msg) error {
	do := func() error { return l.Ledger.Complete(ctx, c, out) }
	if l.onComplete != nil {
		return l.onComplete(out, do)
	}
	return do()
}

func (l *tapped) Release(ctx context.Context, c *dedup.Claim, failure *event.Attempt, later *nats.Msg) error {
	do := func() error { return l.Ledger.Release(ctx, c, failure, later) }
	if l.onRelease != nil {
		return l.onRelease(do)
	}
	return do()
}

func (l *tapped) Park(ctx context.Context, c *dedup.Claim, failure *event.Attempt, letter *nats.Msg) error {
	do := func() error { return l.Ledger.Park(ctx, c, failure, letter) }
	if l.onPark != nil {
		return l.onPark(letter, do)
	}
	return do()
}

// gap is one event of which the first process dies.
type gap struct {
	*system
	event event.Event
	runs  tally
	fails bool
	cfg   consumer.Config

	dies sync.Once
	dead chan struct{}
}

// newGap stores the event; fails says whether its handler fails whenever it runs.
func newGap(t *testing.T, fails bool) *gap {
	t.Helper()
	return newGapOf(t, kvKind, fails)
}

func newGapOf(t *testing.T, kind kind, fails bool) *gap {
	t.Helper()
	g := &gap{system: newSystem(t), fails: fails, cfg: config(), dead: make(chan struct{})}
	g.kind = kind
	g.cfg.Lease, g.cfg.HandlerTimeout = time.Second, time.Second
	g.event = g.publish(draft("o-1"))[0]
	return g
}

// die kills p.
func (g *gap) die(p *process) {
	p.crash()
	g.dies.Do(func() { close(g.dead) })
}

// crash kills p. Whoever is about to do the next step gets the error.
func (g *gap) crash(p *process) error {
	g.die(p)
	return errCrashed
}

// handler is what both processes run; the first one, p, dies after it if told so.
func (g *gap) handler(dies func()) *consumer.Registry {
	return handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		step, err := g.handle(e)
		dies()
		return step, err
	})
}

func (g *gap) handle(e event.Event) (consumer.Step, error) {
	g.runs.add(e.ID())
	if g.fails {
		return consumer.Step{}, errFlaky
	}
	return pay(e), nil
}

// first runs the process that dies, and returns when it has.
func (g *gap) first(tap func(p *process) *tapped) {
	g.tb.Helper()
	g.start(g.cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		select {
		case <-g.dead: // an owner would have it run again
			return consumer.Step{}, errCrashed
		default:
			return g.handle(e)
		}
	}), func(p *process, l dedup.Ledger) dedup.Ledger {
		tapped := tap(p)
		tapped.Ledger = l
		return tapped
	})
	<-g.dead
}

// dieHandling runs a process that dies when its handler has done its work.
func (g *gap) dieHandling() {
	g.tb.Helper()
	p := new(*process)
	*p = g.prepare(g.cfg, g.handler(func() { g.die(*p) }), nil)
	(*p).run()
	g.tb.Cleanup(func() {
		if err := (*p).stop(); err != nil {
			g.tb.Error(err)
		}
	})
	<-g.dead
}

// finish runs a fresh process until nothing is left to do.
func (g *gap) finish() *process {
	g.tb.Helper()
	p := g.start(g.cfg, g.handler(func() {}), nil)
	if g.open(g.bus).Partitions() != nil {
		g.ended()
	} else {
		g.settled(g.cfg.Name)
	}
	return p
}

// wantTurnedAway checks that an event that has ended was delivered again, and not run.
// An owner does not even read it again.
func (g *gap) wantTurnedAway(p *process) {
	g.tb.Helper()
	want := uint64(1)
	if g.open(g.bus).Partitions() != nil {
		want = 0
	}
	if n := p.Stats().Duplicate; n != want {
		g.tb.Errorf("%d duplicates, want %d", n, want)
	}
}

// wantDone checks that the event has taken effect once.
func (g *gap) wantDone(runs, crashes int) {
	g.tb.Helper()
	if n := g.runs.of("o-1"); n != runs {
		g.tb.Errorf("the handler ran %d times, want %d", n, runs)
	}
	out := g.stored(paid.Type())
	if len(out) != 1 {
		g.tb.Fatalf("%d events were emitted, want 1", len(out))
	}
	if want := consumer.DerivedIdentity(g.cfg.Name, g.event, 0).ID; out[0].ID() != want {
		g.tb.Errorf("the emitted event is %s, want %s", out[0].ID(), want)
	}
	if n := len(g.letters()); n != 0 {
		g.tb.Errorf("%d dead letters, want none", n)
	}
	m := g.mark(g.cfg.Name, event.EventKeyOf(g.event))
	if m.State != "done" || m.Crashes != crashes || m.Failures != 0 {
		g.tb.Errorf("mark is %s after %d crashes and %d failures, want done after %d and none", m.State, m.Crashes, m.Failures, crashes)
	}
}

// wantParked checks that the event lies in the dead letters once.
func (g *gap) wantParked(runs, failures, crashes int) {
	g.tb.Helper()
	if n := g.runs.of("o-1"); n != runs {
		g.tb.Errorf("the handler ran %d times, want %d", n, runs)
	}
	l := g.letter()
	if l.Reason != event.ReasonExhausted || l.Failures != failures || len(l.Attempts) != failures || l.Crashes != crashes {
		g.tb.Errorf("letter tells %s after %d failures (%d told) and %d crashes, want %s after %d and %d",
			l.Reason, l.Failures, len(l.Attempts), l.Crashes, event.ReasonExhausted, failures, crashes)
	}
	if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.State != "parked" {
		g.tb.Errorf("mark is %s, want parked", m.State)
	}
}

func TestGap_decoded(t *testing.T) {
	t.Parallel()
	eachLedger(t, false, func(t *testing.T, g *gap, _ int) {
		t.Helper()
		g.first(func(p *process) *tapped {
			return &tapped{onClaim: func(func() error) error { return g.crash(p) }}
		})
		g.finish()
		g.wantDone(1, 0)
	})
}

func TestGap_claimed(t *testing.T) {
	t.Parallel()
	eachLedger(t, false, func(t *testing.T, g *gap, claims int) {
		t.Helper()
		g.first(func(p *process) *tapped {
			return &tapped{onClaim: func(do func() error) error { return errors.Join(do(), g.crash(p)) }}
		})
		g.finish()
		g.wantDone(1, claims)
	})
}

func TestGap_handled(t *testing.T) {
	t.Parallel()
	eachLedger(t, false, func(t *testing.T, g *gap, claims int) {
		t.Helper()
		g.dieHandling()
		g.finish()
		g.wantDone(2, claims)
	})
}

// dieAfterSending is a ledger that dies between the outgoing messages and the mark.
func (g *gap) dieAfterSending(p *process, out ...*nats.Msg) error {
	for _, m := range out {
		pending, err := p.bus.Send(g.tb.Context(), m)
		if err == nil {
			_, err = pending.Wait(g.tb.Context())
		}
		if err != nil {
			g.tb.Errorf("send: %v", err)
		}
	}
	return g.crash(p)
}

// TestGap_KV_published_long_ago is the gap between the outgoing messages and
// the mark when the server has forgotten the message id: two copies are
// stored, and the next consumer's ledger knows better.
func TestGap_KV_published_long_ago(t *testing.T) {
	t.Parallel()
	g := newGap(t, false)
	g.first(func(p *process) *tapped {
		return &tapped{onComplete: func(out []*nats.Msg, _ func() error) error {
			out[0].Header.Del(nats.MsgIdHdr)
			return g.dieAfterSending(p, out...)
		}}
	})
	g.finish()
	out := g.stored(paid.Type())
	if len(out) != 2 || out[0].ID() != out[1].ID() {
		t.Fatalf("%d events stored, want two copies of one", len(out))
	}
	for n, kind := range []kind{kvKind, partitionKind} {
		r := consumer.NewRegistry()
		consumer.Handle(r, paid, func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
			return consumer.Emit(reserved.New(event.PartitionKey(e), orderData{})), nil
		})
		cfg := config()
		cfg.Name = event.Consumer(fmt.Sprint("inventory-", n))
		next := *g.system
		next.kind = kind
		next.start(cfg, r, nil)
		next.settled(cfg.Name)
		if effects := len(g.stored(reserved.Type())) - n; effects != 1 {
			t.Errorf("ledger %d: %d effects of the two copies, want 1", n, effects)
		}
	}
}

func TestGap_done(t *testing.T) {
	t.Parallel()
	eachLedger(t, false, func(t *testing.T, g *gap, _ int) {
		t.Helper()
		g.first(func(p *process) *tapped {
			return &tapped{onComplete: func(_ []*nats.Msg, do func() error) error { return errors.Join(do(), g.crash(p)) }}
		})
		p := g.finish()
		g.wantDone(1, 0)
		g.wantTurnedAway(p)
	})
}

func TestGap_acked(t *testing.T) {
	t.Parallel()
	eachLedger(t, false, func(t *testing.T, g *gap, _ int) {
		t.Helper()
		p := g.start(g.cfg, g.handler(func() {}), nil)
		g.settled(g.cfg.Name)
		p.crash()
		fresh := g.finish()
		g.wantDone(1, 0)
		if n := fresh.Stats().Duplicate; n != 0 {
			t.Errorf("%d redeliveries, want none", n)
		}
	})
}

func TestGap_failed(t *testing.T) {
	t.Parallel()
	eachLedger(t, true, func(t *testing.T, g *gap, claims int) {
		t.Helper()
		g.dieHandling()
		g.finish()
		g.wantParked(4, 3, claims) // the failure nobody recorded is a crash
	})
}

func TestGap_attempt_recorded(t *testing.T) {
	t.Parallel()
	eachLedger(t, true, func(t *testing.T, g *gap, _ int) {
		t.Helper()
		g.first(func(p *process) *tapped {
			return &tapped{onRelease: func(do func() error) error { return errors.Join(do(), g.crash(p)) }}
		})
		g.finish()
		g.wantParked(3, 3, 0)
	})
}

func TestGap_parked(t *testing.T) {
	t.Parallel()
	eachLedger(t, true, func(t *testing.T, g *gap, _ int) {
		t.Helper()
		g.first(func(p *process) *tapped {
			return &tapped{onPark: func(_ *nats.Msg, do func() error) error { return errors.Join(do(), g.crash(p)) }}
		})
		p := g.finish()
		g.wantParked(3, 3, 0)
		g.wantTurnedAway(p)
	})
}

func TestGap_termed(t *testing.T) {
	t.Parallel()
	eachLedger(t, true, func(t *testing.T, g *gap, _ int) {
		t.Helper()
		p := g.start(g.cfg, g.handler(func() {}), nil)
		g.letter()
		g.settled(g.cfg.Name)
		p.crash()
		fresh := g.finish()
		g.wantParked(3, 3, 0)
		if n := fresh.Stats().Duplicate; n != 0 {
			t.Errorf("%d redeliveries, want none", n)
		}
	})
}
