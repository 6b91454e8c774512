package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// TestOutageAtEachLedgerCall lets each call of the ledger fail, on either side
// of its effect, in a process that lives on.
func TestOutageAtEachLedgerCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		fault         deduptest.Fault
		fails         bool
		runs, crashes int
		// stored says that the fault is one of a claim in a store. An owner of partitions
		// keeps its own in memory, where no call gets lost.
		stored bool
	}{
		{fault: deduptest.Fault{Method: deduptest.Claim, Call: 1, When: deduptest.Before}, runs: 1},
		// The claim stands, and whoever made it does not know: as after a crash.
		{fault: deduptest.Fault{Method: deduptest.Claim, Call: 1, When: deduptest.After}, runs: 1, crashes: 1, stored: true},
		{fault: deduptest.Fault{Method: deduptest.Complete, Call: 1, When: deduptest.Before}, runs: 2},
		{fault: deduptest.Fault{Method: deduptest.Complete, Call: 1, When: deduptest.After}, runs: 1},
		// The failure was not recorded, so it does not count.
		{fault: deduptest.Fault{Method: deduptest.Release, Call: 1, When: deduptest.Before}, fails: true, runs: 4, crashes: 1, stored: true},
		{fault: deduptest.Fault{Method: deduptest.Release, Call: 1, When: deduptest.After}, fails: true, runs: 3},
		{fault: deduptest.Fault{Method: deduptest.Park, Call: 1, When: deduptest.Before}, fails: true, runs: 3},
		{fault: deduptest.Fault{Method: deduptest.Park, Call: 1, When: deduptest.After}, fails: true, runs: 3},
	} {
		t.Run(tt.fault.String(), func(t *testing.T) {
			t.Parallel()
			each := eachLedger
			if tt.stored {
				each = eachStore
			}
			each(t, tt.fails, func(t *testing.T, g *gap, claims int) {
				t.Helper()
				var faulty *deduptest.FaultyLedger
				p := g.start(g.cfg, g.handler(func() {}), func(_ *process, l dedup.Ledger) dedup.Ledger {
					faulty = deduptest.Faulty(l, tt.fault)
					return faulty
				})
				bustest.Eventually(t, soon, func() bool { return len(faulty.Pending()) == 0 })
				g.settled(g.cfg.Name)
				crashes := min(tt.crashes, claims)
				if tt.fails {
					g.wantParked(tt.runs, 3, crashes)
				} else {
					g.wantDone(tt.runs, crashes)
				}
				// What the outage broke is healthy again once something worked.
				g.publish(draft("o-2"))
				g.settled(g.cfg.Name)
				bustest.Eventually(t, soon, p.Health)
			})
		})
	}
}

// A handler that returns bus.ErrUnavailable spends no attempt, unless it says
// itself what is to become of the event.
func TestOutageOfWhatTheHandlerNeeds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Retry.MaxAttempts = 1
	var runs tally
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		err := fmt.Errorf("read a document: %w", bus.ErrUnavailable)
		switch {
		case e.ID() == "wish":
			return consumer.Step{}, consumer.RetryAfter(err, time.Millisecond)
		case runs.add(e.ID()) > 2:
			return consumer.Step{}, nil
		}
		return consumer.Step{}, err
	}), nil)
	s.publish(draft("o-1"))
	unhealthy(t, p)
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
	if st := p.Stats(); st.Handled != 1 || st.Released != 2 || st.Parked != 0 {
		t.Errorf("stats = %+v, want it handled after it was given back twice", st)
	}
	s.publish(draft("wish"))
	bustest.Eventually(t, soon, func() bool { return p.Stats().Parked == 1 })
}

func TestFailedHeartbeatCancelsTheHandler(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = time.Second, time.Second
	var runs tally
	p := s.start(cfg, handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) > 1 {
			return consumer.Step{}, nil
		}
		<-ctx.Done()
		return consumer.Step{}, context.Cause(ctx)
	}), func(_ *process, l dedup.Ledger) dedup.Ledger {
		return deduptest.Faulty(l, deduptest.Fault{Method: deduptest.Extend, Call: 1, When: deduptest.Before})
	})
	e := s.publishN(1)[0]
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	s.settled("payment")
	if m := s.mark("payment", event.EventKeyOf(e)); m.Failures != 0 || m.Crashes != 0 || runs.of(e.ID()) != 2 {
		t.Errorf("%d runs, %d failures, %d crashes; want 2, none, none", runs.of(e.ID()), m.Failures, m.Crashes)
	}
	if st := p.Stats(); st.Lost != 1 {
		t.Errorf("stats = %+v, want one lost", st)
	}
}

func TestHeartbeatKeepsALongHandlerAlive(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = 3*time.Second, 3*time.Second
	cfg.Concurrency = 1 // so that the follower waits longer than a lease
	var runs tally
	r := handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		select {
		case <-ctx.Done():
		case <-time.After(2500 * time.Millisecond):
		}
		return consumer.Step{}, ctx.Err()
	})
	one := s.start(cfg, r, nil)
	two := s.start(cfg, r, nil)
	events := s.publishN(6)
	s.settled("payment")
	runs.wantOnce(t, events)
	for _, p := range []*process{one, two} {
		if st := p.Stats(); st.Busy+st.Duplicate+st.Lost > 0 {
			t.Errorf("stats = %+v, want no event to have been delivered twice", st)
		}
	}
}

func TestDeleted_durable_and_stream_come_back(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	p := s.start(config(), counting(&runs), nil)
	before := s.publish(draft("o-1"))
	s.settled("payment")

	js, stream := s.bus.JetStream(), s.bus.Names().EventsStream()
	if err := js.DeleteConsumer(t.Context(), stream, "payment"); err != nil {
		t.Fatal(err)
	}
	unhealthy(t, p)
	bustest.Eventually(t, soon, p.Health)
	before = append(before, s.publish(draft("o-2"))...)
	s.settled("payment")

	if err := js.DeleteStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	unhealthy(t, p)
	bustest.Provision(t, s.bus, topology.Config{})
	before = append(before, s.publish(draft("o-3"))...)
	bustest.Eventually(t, soon, p.Health)
	s.settled("payment")
	runs.wantOnce(t, before)
}

func TestServer_restarts_three_times(t *testing.T) {
	t.Parallel()
	s, srv := privateSystem(t, nil, bus.Config{})
	var runs tally
	p := s.start(config(), counting(&runs), nil)
	var events []event.Event
	for i := range 3 {
		events = append(events, s.publish(draft("a-"+string(rune('0'+i))))...)
		s.settled("payment")
		srv.Stop(t)
		unhealthy(t, p)
		srv.Restart(t)
		bustest.Eventually(t, soon, s.bus.Health)
		bustest.Eventually(t, soon, p.Health)
		events = append(events, s.publish(draft("b-"+string(rune('0'+i))))...)
		// A server that has just started may say that nothing is pending.
		bustest.Eventually(t, soon, func() bool { return runs.total() >= len(events) })
		s.settled("payment")
	}
	runs.wantOnce(t, events)
}

func TestDenied_emission_waits_for_the_permission(t *testing.T) {
	t.Parallel()
	deny := []string{"*.events.payment.>"}
	s, srv := privateSystem(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "admin"},
			{Username: "payment", Password: "payment", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: deny},
			}},
		}
	}, bus.Config{User: "admin", Password: "admin"})
	s.user = "payment"
	var runs tally
	p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		return pay(e), nil
	}), nil)
	e := s.publishN(1)[0]
	bustest.Eventually(t, soon, func() bool { return errors.Is(p.Health(), bus.ErrDenied) })
	// More often than there are attempts.
	bustest.Eventually(t, soon, func() bool { return runs.of(e.ID()) > 4 })
	if m := s.mark("payment", event.EventKeyOf(e)); m.Failures != 0 || m.Crashes != 0 {
		t.Errorf("%d failures and %d crashes, want none: it was not the event's fault", m.Failures, m.Crashes)
	}
	deny = nil
	srv.Restart(t) // a reload races with reads inside the server
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
	if n := len(s.stored(paid.Type())); n != 1 {
		t.Errorf("%d events emitted, want 1", n)
	}
	if n := len(s.letters()); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

// Something is pending and nobody pulls it: that is not health.
func TestNothingIsPulledWhileAllPlacesAreTaken(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Concurrency, cfg.InFlight = 1, 1
	cfg.HandlerTimeout, cfg.Lease = 200*time.Millisecond, time.Minute // no sign of life is due
	let := make(chan struct{})
	p := s.start(cfg, handling(func(context.Context, event.Event) (consumer.Step, error) {
		<-let
		return consumer.Step{}, nil
	}), nil)
	s.publishN(2)
	bustest.Eventually(t, soon, func() error {
		if err := p.Health(); err == nil || !strings.Contains(err.Error(), "nothing is pulled") || !strings.Contains(err.Error(), "1 events are pending") {
			return fmt.Errorf("health is %w", err)
		}
		return nil
	})
	close(let)
	s.settled("payment")
	bustest.Eventually(t, soon, p.Health)
}
