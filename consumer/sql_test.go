package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/state"
	"github.com/farandole/farandole/topology"
)

// startWorking runs a process whose handler works in its transaction: it has
// counted its event there before work goes on.
func (s *system) startWorking(cfg consumer.Config, work func(ctx context.Context, tx *sql.Tx, e event.Event) (consumer.Step, error)) *process {
	s.tb.Helper()
	return s.start(cfg, working(work), nil)
}

func working(work func(ctx context.Context, tx *sql.Tx, e event.Event) (consumer.Step, error)) *consumer.Registry {
	return handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		tx, err := outbox.Tx(ctx)
		if err == nil {
			err = effect(ctx, tx, e)
		}
		if err != nil {
			return consumer.Step{}, err
		}
		return work(ctx, tx, e)
	})
}

// effect counts an event in a table.
func effect(ctx context.Context, tx *sql.Tx, e event.Event) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (event, runs) VALUES ($1, 1)
		ON CONFLICT (event) DO UPDATE SET runs = effects.runs + 1`, e.ID())
	return err
}

// effects are the committed counts.
func (s *system) effects() *tally {
	s.tb.Helper()
	rows, err := s.open(s.bus).(*sqlLedger).db.QueryContext(s.tb.Context(), "SELECT event, runs FROM effects")
	if err != nil {
		s.tb.Fatal(err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	all := &tally{by: map[string]int{}}
	for rows.Next() {
		var id string
		var runs int
		if err := rows.Scan(&id, &runs); err != nil {
			s.tb.Fatal(err)
		}
		all.by[id] = runs
	}
	if err := rows.Err(); err != nil {
		s.tb.Fatal(err)
	}
	return all
}

// TestSQL_outcomes ends handlers in every way: what worked is committed, what
// did not is rolled back, and nobody keeps a connection.
func TestSQL_outcomes(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Retry.MaxAttempts = 2
		cfg.HandlerTimeout, cfg.Lease = 5*time.Second, 5*time.Second
		p := s.startWorking(cfg, func(ctx context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
			switch e.ID() {
			case "skipped":
				return consumer.Step{}, consumer.Skip
			case "fails":
				return consumer.Step{}, errFlaky
			case "hopeless":
				return consumer.Step{}, consumer.Permanent(errFlaky)
			case "panics":
				panic("no")
			case "late":
				<-ctx.Done()
				return consumer.Step{}, ctx.Err()
			case "emits nonsense":
				return consumer.Emit(event.Draft{Type: "nonsense"}), nil
			case "keeps documents":
				return consumer.Step{State: []state.Change{{}}}, nil
			}
			return pay(e), nil
		})
		for _, id := range []string{"works", "skipped", "fails", "hopeless", "panics", "late", "emits nonsense", "keeps documents"} {
			d := draft("o")
			d.ID, d.Key = id, event.Key(strings.ReplaceAll(id, " ", "-"))
			s.publish(d)
		}
		s.settled("payment")
		wantIdle(t, p)
		effects := s.effects().all()
		if len(effects) != 2 || effects["works"] != 1 || effects["skipped"] != 1 {
			t.Errorf("effects are %v, want those of the handlers that worked, once", effects)
		}
		if n := len(s.stored(paid.Type())); n != 1 {
			t.Errorf("%d events emitted, want 1", n)
		}
		reasons := map[string]string{
			"fails": event.ReasonExhausted, "hopeless": event.ReasonPermanent, "panics": event.ReasonExhausted,
			"late": event.ReasonExhausted, "emits nonsense": event.ReasonPermanent, "keeps documents": event.ReasonPermanent,
		}
		for _, l := range s.letters() {
			if l.Reason != reasons[l.EventID] {
				t.Errorf("%s was parked as %s", l.EventID, l.Reason)
			}
			delete(reasons, l.EventID)
		}
		if len(reasons) > 0 {
			t.Errorf("not parked: %v", reasons)
		}
	})
}

// A handler that ignores its cancellation keeps neither its transaction nor the
// database: another process handles the event.
func TestSQL_abandoned_handler(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Grace = time.Millisecond
		begun, let := make(chan struct{}), make(chan struct{})
		r := working(func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
			close(begun)
			<-let
			return pay(e), nil
		})
		p := s.prepare(cfg, r, nil)
		p.run()
		events := s.publishN(1)
		<-begun
		if err := p.stop(); !errors.Is(err, consumer.ErrAbandoned) {
			t.Errorf("Run = %v, want ErrAbandoned", err)
		}
		wantIdle(t, p)
		fresh := s.startWorking(cfg, func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) { return pay(e), nil })
		bustest.Eventually(t, soon, func() bool { return fresh.Stats().Handled == 1 })
		close(let) // it comes too late
		bustest.Eventually(t, soon, func() bool { return p.Stats().InFlight == 0 })
		s.settled("payment")
		s.effects().wantOnce(t, events)
		if n := len(s.stored(paid.Type())); n != 1 {
			t.Errorf("%d events emitted, want 1", n)
		}
		wantIdle(t, p)
	})
}

// Copies of events on two processes, some of which run them at the same time.
func TestDoubled_events_on_the_SQL_ledger(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, kind kind, _ int) {
		t.Helper()
		s := newSystem(t)
		s.kind = kind
		cfg := config()
		cfg.Lease, cfg.HandlerTimeout = 5*time.Second, 5*time.Second // a copy that lost comes again after a lease
		var failed tally
		work := func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
			if failed.add(e.ID()) == 1 && strings.HasSuffix(e.ID(), "7") {
				return consumer.Step{}, errFlaky
			}
			return pay(e), nil
		}
		one, two := s.startWorking(cfg, work), s.startWorking(cfg, work)
		events := s.publishN(30)
		for _, e := range events {
			s.again(e)
		}
		s.settled("payment")
		s.effects().wantOnce(t, events)
		if n := len(s.stored(paid.Type())); n != len(events) {
			t.Errorf("%d events emitted, want %d", n, len(events))
		}
		if n := one.Stats().Handled + two.Stats().Handled; n != uint64(len(events)) {
			t.Errorf("%d events handled, want %d", n, len(events))
		}
		for _, p := range []*process{one, two} {
			wantIdle(t, p)
			if err := p.Health(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRecreated_durable_on_the_SQL_ledger(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Lease, cfg.HandlerTimeout = time.Minute, time.Minute
		work := func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) { return pay(e), nil }
		p := s.startWorking(cfg, work)
		events := s.publishN(40)
		s.settled("payment")
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
			t.Fatal(err)
		}
		fresh := s.startWorking(cfg, work)
		s.settled("payment")
		s.effects().wantOnce(t, events)
		if st := fresh.Stats(); st.Duplicate != 40 || st.Handled != 0 {
			t.Errorf("stats = %+v, want 40 duplicates", st)
		}
		if n := len(s.stored(paid.Type())); n != 40 {
			t.Errorf("%d events emitted, want 40", n)
		}
	})
}

// Poison is parked, what is behind it flows, and once it can be handled a
// replay does it, once.
func TestSQL_replay(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s *system) {
		t.Helper()
		fixed := make(chan struct{})
		s.startWorking(config(), func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
			select {
			case <-fixed:
			default:
				if e.ID() == "o-1" {
					return consumer.Step{}, errFlaky
				}
			}
			return pay(e), nil
		})
		events := s.publishN(5)
		if l := s.letter(); l.EventID != "o-1" || l.Failures != 3 {
			t.Errorf("the letter is of %s after %d failures", l.EventID, l.Failures)
		}
		s.settled("payment")
		close(fixed)
		for range 2 {
			s.replayAll()
			s.settled("payment")
		}
		s.effects().wantOnce(t, events)
		if n := len(s.stored(paid.Type())); n != 5 {
			t.Errorf("%d events emitted, want 5", n)
		}
		if n := len(s.letters()); n != 0 {
			t.Errorf("%d letters are left", n)
		}
	})
}

// Without a dead-letter stream nothing is lost, and nothing is rolled in by half.
func TestMissing_dead_letter_stream_with_the_SQL_ledger(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s *system) {
		t.Helper()
		if err := s.bus.JetStream().DeleteStream(t.Context(), s.bus.Names().DLQStream()); err != nil {
			t.Fatal(err)
		}
		p := s.startWorking(config(), func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
			if e.ID() == "o-1" {
				return consumer.Step{}, errFlaky
			}
			return pay(e), nil
		})
		s.publishN(3)
		unhealthy(t, p)
		bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 2 })
		wantIdle(t, p)
		if got := s.effects().all(); got["o-0"] != 1 || got["o-1"] != 0 || got["o-2"] != 1 {
			t.Errorf("effects are %v", got)
		}
		bustest.Provision(t, s.bus, topology.Config{})
		if l := s.letter(); l.EventID != "o-1" || l.Failures != 3 {
			t.Errorf("the letter is of %s after %d failures, want o-1 after 3", l.EventID, l.Failures)
		}
		s.settled("payment")
		bustest.Eventually(t, soon, p.Health)
	})
}

// Without the database nothing is handled and no attempt is spent; with it all is well again.
func TestOutage_SQL_database(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pg.Config{})
	e := engines["Postgres"]
	e.create = func(t *testing.T) string { t.Helper(); return server.Database(t) }
	s := newSystem(t)
	s.kind = sqlKind(t, e, false)
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = 10*time.Second, 10*time.Second
	begun, stopped := make(chan struct{}), make(chan struct{})
	p := s.startWorking(cfg, func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
		if e.ID() == "during" {
			select {
			case begun <- struct{}{}:
				<-stopped
			case <-stopped:
			}
		}
		return pay(e), nil
	})
	events := s.publish(draft("before"))
	s.settled("payment")
	events = append(events, s.publish(draft("during"))...)
	<-begun
	server.Kill(t)
	close(stopped)
	events = append(events, s.publish(draft("without"))...)
	unhealthy(t, p)
	if n := len(s.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	server.Restart(t)
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
	s.effects().wantOnce(t, events)
	if n := len(s.stored(paid.Type())); n != 3 {
		t.Errorf("%d events emitted, want 3", n)
	}
	for _, e := range events {
		if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures > 0 || m.Crashes > 0 {
			t.Errorf("%s: mark is %+v", e.ID(), m)
		}
	}
	wantIdle(t, p)
}

// A handler that times out while it waits for its transaction spends no attempt.
func TestOutage_SQL_locked(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = sqlKind(t, engines["SQLite"], false)
	l := s.open(s.bus).(*sqlLedger)
	cfg := config()
	cfg.HandlerTimeout, cfg.Retry.MaxAttempts = 200*time.Millisecond, 1
	p := s.startWorking(cfg, func(_ context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) { return pay(e), nil })
	bustest.Eventually(t, soon, func() bool { // it has written what it does at its start
		info, err := s.durable("payment")
		return err == nil && info.NumWaiting > 0
	})
	tx, err := l.db.BeginTx(t.Context(), nil) // the only one that writes
	if err != nil {
		t.Fatal(err)
	}
	events := s.publishN(1)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Released >= 2 })
	unhealthy(t, p)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
	s.effects().wantOnce(t, events)
	if st := p.Stats(); st.Handled != 1 || st.Retried+st.Parked > 0 {
		t.Errorf("stats = %+v, want one handled and no attempt spent", st)
	}
}

// The heartbeat renews a claim whose handler has its transaction open.
func TestSQL_heartbeat(t *testing.T) {
	t.Parallel()
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = sqlKind(t, e, true)
			cfg := config()
			cfg.Lease, cfg.HandlerTimeout = 12*time.Second, 12*time.Second
			p := s.startWorking(cfg, func(ctx context.Context, _ *sql.Tx, e event.Event) (consumer.Step, error) {
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second): // longer than a heartbeat
				}
				return pay(e), ctx.Err()
			})
			events := s.publishN(1)
			s.settled("payment")
			s.effects().wantOnce(t, events)
			if st := p.Stats(); st.Handled != 1 || st.Lost+st.Retried+st.Released > 0 {
				t.Errorf("stats = %+v, want it handled at once", st)
			}
			wantIdle(t, p)
		})
	}
}

// Run says what is missing.
func TestSQL_without_tables(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s *system) {
		t.Helper()
		l := s.open(s.bus).(*sqlLedger)
		for _, table := range []string{"inbox", "outbox_version"} {
			if _, err := l.db.ExecContext(t.Context(), "DROP TABLE "+table); err != nil {
				t.Fatal(err)
			}
		}
		p := s.prepare(config(), counting(&tally{}), nil)
		p.run()
		<-p.done
		if err := p.stop(); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(fmt.Sprint(err), "Migrate") {
			t.Errorf("Run = %v, want it to say that Migrate has to be run", err)
		}
	})
}
