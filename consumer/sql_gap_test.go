package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/sqltap"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/outbox"
)

// The tests of this file let a process with the SQL ledger die, or its
// connection to the database break, at each statement of a step and of what
// follows from a failure; and at what it sends to NATS. A process is dead when its
// tap is cut, after the statement that it dies of: the hook runs before that.

// sqlWhole is a gap whose step has all that a step can have with a database:
// a change in the handler's transaction, events, a timer and a cancellation.
type sqlWhole struct{ *whole }

func newSQLWhole(t *testing.T, kind kind) sqlWhole {
	t.Helper()
	return sqlWhole{newWhole(t, newSQLGap(t, kind, false))}
}

// newSQLGap has more patience: a lease that ends before a slow machine has
// begun a transaction proves nothing.
func newSQLGap(t *testing.T, kind kind, fails bool) *gap {
	t.Helper()
	g := newGapOf(t, kind, fails)
	g.cfg.Lease, g.cfg.HandlerTimeout = 4*time.Second, 4*time.Second
	return g
}

// statements is how many a step consists of: the handler's two, the mark, a row
// for each message, and the commit.
func (w sqlWhole) statements() int { return 2 + 1 + w.size() - 1 + 1 }

// registry has a handler that works in its transaction, and what lets the
// process meet its fate at the n-th statement from BEGIN on, counted from 1.
// After the last one that is the answer to it.
func (w sqlWhole) registry(n int, before, after sqltap.Verdict) (*consumer.Registry, func(*process, dedup.Ledger) dedup.Ledger) {
	r := handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		w.runs.add(e.ID())
		tx, err := outbox.Tx(ctx)
		if err == nil {
			_, err = tx.ExecContext(ctx, `INSERT INTO effects (event, runs) VALUES ($1, 1)
				ON CONFLICT (event) DO UPDATE SET runs = effects.runs + 1`, e.ID())
		}
		if err != nil {
			return consumer.Step{}, err
		}
		step := consumer.Step{
			Timers: []consumer.Timer{deadline("o-1", time.Hour)},
			Cancel: []consumer.TimerID{{Name: "reminder", Key: "o-1"}},
		}
		for i := range events {
			step.Events = append(step.Events, paid.New(event.Key(fmt.Sprint("p-", i)), orderData{}))
		}
		return step, nil
	})
	return r, func(p *process, ledger dedup.Ledger) dedup.Ledger {
		p.ledger.(*sqlLedger).judge.set(w.at(n, before, after, p))
		return ledger
	}
}

func (w sqlWhole) at(n int, before, after sqltap.Verdict, p *process) sqltap.Hook {
	var mu sync.Mutex
	begun, verdict := false, before
	if n > w.statements() {
		n, verdict = n-1, after
	}
	return func(query string) sqltap.Verdict {
		mu.Lock()
		defer mu.Unlock()
		begun = begun || query == "BEGIN"
		if !begun {
			return sqltap.Pass
		}
		if n--; n != 0 {
			return sqltap.Pass
		}
		if verdict == sqltap.Cut || verdict == sqltap.LoseCut {
			p.bus.Conn().Close()
		}
		return verdict
	}
}

// count asks the database.
func (w sqlWhole) count(query string) (n int) {
	w.tb.Helper()
	if err := w.open(w.bus).(*sqlLedger).db.QueryRowContext(w.tb.Context(), query).Scan(&n); err != nil {
		w.tb.Fatal(err)
	}
	return n
}

// wantEffects checks that all of the step is there n times, in the database and
// in the stream.
func (w sqlWhole) wantEffects(n int) {
	w.tb.Helper()
	if got := w.count("SELECT coalesce(sum(runs), 0) FROM effects"); got != n {
		w.tb.Errorf("the handler's change is there %d times, want %d", got, n)
	}
	if got := w.count("SELECT count(*) FROM outbox"); got != n*(w.size()-1) {
		w.tb.Errorf("%d rows are in the outbox, want %d", got, n*(w.size()-1))
	}
}

// TestGap_SQL_completing lets a process die before each statement of a step, and
// before the answer to the commit. Everything is there then or nothing; in the
// end everything is, once.
func TestGap_SQL_completing(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, kind kind, claims int) {
		t.Helper()
		for n := range newSQLWhole(t, kind).statements() + 1 {
			t.Run(fmt.Sprint("statement ", n+1), func(t *testing.T) {
				t.Parallel()
				w := newSQLWhole(t, kind)
				stored := 0
				if n == w.statements() {
					stored = 1
				}
				r, wrap := w.registry(n+1, sqltap.Cut, sqltap.LoseCut)
				p := w.start(w.cfg, r, wrap)
				<-p.ledger.(*sqlLedger).tap.IsCut()
				w.wantEffects(stored)
				r, wrap = w.registry(0, sqltap.Pass, sqltap.Pass)
				p = w.start(w.cfg, r, wrap)
				w.settled(w.cfg.Name)
				w.wantEffects(1)
				w.wantParts(1)
				if runs, want := w.runs.of("o-1"), 2-stored; runs != want {
					t.Errorf("the handler ran %d times, want %d", runs, want)
				}
				if st := p.Stats(); st.Handled != uint64(1-stored) || st.Parked+st.Retried > 0 {
					t.Errorf("stats %+v after %d steps were stored", st, stored)
				}
				if m := w.mark(w.cfg.Name, event.EventKeyOf(w.event)); m.State != "done" || m.Failures > 0 || m.Crashes != claims*(1-stored) {
					t.Errorf("mark is %+v", m)
				}
			})
		}
	})
}

// TestOutage_SQL_completing is the same for a process that lives: its
// connection breaks, and it goes on by itself. What breaks in the handler's own
// hands is the handler's failure.
func TestOutage_SQL_completing(t *testing.T) {
	t.Parallel()
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind := sqlKind(t, e, false)
			for n := range newSQLWhole(t, kind).statements() + 1 {
				t.Run(fmt.Sprint("statement ", n+1), func(t *testing.T) {
					t.Parallel()
					failures := 0
					if n == 1 { // what begins is the database's
						failures = 1
					}
					outageCompleting(t, newSQLWhole(t, kind), n, failures)
				})
			}
		})
	}
}

func outageCompleting(t *testing.T, w sqlWhole, n, failures int) {
	t.Helper()
	r, wrap := w.registry(n+1, sqltap.Break, sqltap.Lose)
	p := w.start(w.cfg, r, wrap)
	bustest.Eventually(t, soon, func() bool { return w.mark(w.cfg.Name, event.EventKeyOf(w.event)).State == "done" })
	w.settled(w.cfg.Name)
	w.wantEffects(1)
	w.wantParts(1)
	if m := w.mark(w.cfg.Name, event.EventKeyOf(w.event)); m.Crashes > 0 || m.Failures != failures {
		t.Errorf("%d crashes and %d failures, want none and %d: %+v", m.Crashes, m.Failures, failures, m.First)
	}
	wantIdle(t, p)
	w.publish(draft("o-2"))
	w.settled(w.cfg.Name)
	bustest.Eventually(t, soon, p.Health)
}

// wantIdle waits until a process holds none of its database's connections.
func wantIdle(t *testing.T, p *process) {
	t.Helper()
	bustest.Eventually(t, soon, func() error {
		if n := p.ledger.(*sqlLedger).db.Stats().InUse; n > 0 {
			return fmt.Errorf("%d connections are in use", n)
		}
		return nil
	})
}

// death is where a process dies: at a frame to or from NATS, or at a statement.
type death struct {
	sent, received func(frame []byte) bool
	statement      func(statement string) bool
	verdict        sqltap.Verdict // Cut or LoseCut
}

// dying runs the process that dies there.
func (g *gap) dying(r *consumer.Registry, at death) {
	g.tb.Helper()
	var doomed atomic.Pointer[process]
	frames := func(match func(frame []byte) bool) wiretap.Hook {
		if match == nil {
			return nil
		}
		nth := wiretap.Nth(1, wiretap.Cut, match)
		return func(frame []byte) wiretap.Verdict {
			v := nth(frame)
			if v == wiretap.Cut {
				doomed.Load().ledger.(*sqlLedger).crash()
			}
			return v
		}
	}
	tapped := *g.system
	tapped.server = wiretap.New(g.server, frames(at.sent), frames(at.received))
	tapped.start(g.cfg, r, func(p *process, l dedup.Ledger) dedup.Ledger {
		doomed.Store(p)
		if at.statement != nil {
			nth := sqltap.Nth(1, at.verdict, at.statement)
			p.ledger.(*sqlLedger).judge.set(func(query string) sqltap.Verdict {
				v := nth(query)
				if v != sqltap.Pass {
					p.bus.Conn().Close()
				}
				return v
			})
		}
		return l
	})
	<-doomed.Load().ledger.(*sqlLedger).tap.IsCut()
	doomed.Load().crash()
}

// writes matches the statement that writes a mark.
func writes(state string) func(statement string) bool {
	return func(statement string) bool { return strings.Contains(statement, `"state":"`+state+`"`) }
}

func subject(part string) func(frame []byte) bool {
	return func(frame []byte) bool { return strings.Contains(wiretap.Subject(frame), part) }
}

// TestGap_SQL_parking lets a process die at each thing that parking does. In the
// end there is one letter, and the event is parked.
func TestGap_SQL_parking(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, kind kind, claims int) {
		t.Helper()
		for name, tt := range map[string]struct {
			at                     death
			letters, runs, crashes int
		}{
			"claim, not written": {death{statement: writes("claimed"), verdict: sqltap.Cut}, 0, 2 - claims, 0}, // with claims no handler has run
			"before the letter":  {death{sent: subject(".dlq.")}, 0, 2, 1},
			"letter's answer":    {death{received: receipt}, 1, 2, 1},
			"before the mark":    {death{statement: writes("parked"), verdict: sqltap.Cut}, 1, 2, 1},
			"before the answer":  {death{statement: writes("parked"), verdict: sqltap.LoseCut}, 1, 1, 0},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newSQLGap(t, kind, true)
				g.cfg.Retry.MaxAttempts = 1
				g.dying(g.handler(func() {}), tt.at)
				if n := len(g.letters()); n != tt.letters {
					t.Errorf("%d letters stored before the crash, want %d", n, tt.letters)
				}
				g.finish()
				g.wantParked(tt.runs, 1, tt.crashes)
			})
		}
	})
}

// TestGap_SQL_letter_stored_then_succeeds dies between letter and mark, and the
// rerun succeeds: the letter of the lost failure is left, and a replay clears it away.
func TestGap_SQL_letter_stored_then_succeeds(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, kind kind, _ int) {
		t.Helper()
		g := newSQLGap(t, kind, true)
		g.cfg.Retry.MaxAttempts = 1
		g.dying(g.handler(func() {}), death{statement: writes("parked"), verdict: sqltap.Cut})
		g.fails = false
		g.finish()
		if sum := g.replayAll(); sum.Counts[dlq.AlreadyHandled] != 1 {
			t.Errorf("replay = %v, want the event known to be handled", sum.Counts)
		}
		g.settled(g.cfg.Name)
		g.wantDone(2, 1)
	})
}

// TestGap_SQL_deferring lets a process die at each thing that a long retry's
// deferral does. In the end the event has taken effect once, and nothing waits
// any more.
func TestGap_SQL_deferring(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, kind kind, claims int) {
		t.Helper()
		for name, tt := range map[string]struct {
			at       death
			waiting  int // timers stored
			failures int // marked
		}{
			"before the timer":  {death{sent: subject(".timer.payment.retry.")}, 0, 0},
			"before the mark":   {death{statement: writes("waiting"), verdict: sqltap.Cut}, 1, 0},
			"before the answer": {death{statement: writes("waiting"), verdict: sqltap.LoseCut}, 1, 1},
			"before the ack":    {death{sent: acknowledges}, 1, 1},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newSQLGap(t, kind, false)
				g.cfg.Retry.DeferAfter = time.Second
				r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
					if g.runs.add(e.ID()) < 3 {
						return consumer.Step{}, consumer.RetryAfter(errFlaky, 1500*time.Millisecond)
					}
					return pay(e), nil
				})
				g.dying(r, tt.at)
				if n := g.deferrals(); n != tt.waiting {
					t.Errorf("%d retries were put off before the crash, want %d", n, tt.waiting)
				}
				if m := g.mark(g.cfg.Name, event.EventKeyOf(g.event)); m.Failures != tt.failures {
					t.Errorf("%d failures marked after the crash, want %d", m.Failures, tt.failures)
				}
				g.start(g.cfg, r, nil)
				g.wantDeferredDone(claims * (1 - tt.failures))
			})
		}
	})
}
