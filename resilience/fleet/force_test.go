package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/resilience/fleet"
	"github.com/farandole/farandole/topology"
)

// force is what an operator asks for.
func force() fleet.Force {
	return fleet.Force{Consumer: name, Breaker: "gateway", By: "ops@host", Why: "the gateway moves"}
}

// registered waits until the processes have shared their breaker.
func (s *system) registered() {
	s.Helper()
	bustest.Eventually(s, soon, func() bool { return s.shared().State == pauses.Closed })
}

// forceOpen opens the breaker as an operator does, and waits until all processes know.
func (s *system) forceOpen(d time.Duration, all ...*process) fleet.Status {
	s.Helper()
	_, after, err := force().Open(s.Context(), s.bus, d)
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range all {
		p.follows(resilience.Open)
	}
	return after
}

func (p *process) follows(want resilience.State) {
	p.Helper()
	bustest.Eventually(p, soon, func() bool { return p.fleet.State() == want })
}

// passes waits until so much time has passed.
func (s *system) passes(d time.Duration) {
	s.Helper()
	begun := time.Now()
	bustest.Eventually(s, soon, func() bool { return time.Since(begun) > d })
}

// A breaker that an operator has opened stays open, whoever dies or starts, until
// somebody closes it. Nothing is handled meanwhile, and no attempt is spent.
func TestForcedOpenStaysUntilItIsClosed(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		first := s.start()
		s.balanced(1)
		second := s.start()
		s.balanced(2)
		s.registered()
		after := s.forceOpen(0, first, second)
		if after.State != "open" || !after.Forced || !after.Until.IsZero() || after.Opened != 1 {
			s.Errorf("opened: %+v", after)
		}
		s.publish(20)
		first.kill()
		third := s.start()
		third.follows(resilience.Open)
		s.passes(3 * openFor)
		if n := s.gateway.calls.Load(); n > 0 {
			s.Errorf("%d calls while it is open", n)
		}
		if _, err := (consumer.Deletion{Consumer: name}).Plan(s.Context(), s.bus); !errors.Is(err, consumer.ErrRunning) ||
			!strings.Contains(err.Error(), "(processes: 2, paused by breaker gateway)") {
			s.Errorf("may be deleted while two processes are held: %v", err)
		}
		before, after, err := force().Close(s.Context(), s.bus)
		if err != nil || before.State != "open" || after.State != "closed" || !after.Forced {
			s.Errorf("closed: %+v, %+v, %v", before, after, err)
		}
		s.done(20)
		for _, p := range []*process{second, third} {
			p.follows(resilience.Closed)
			if st := p.consumer.Stats(); st.Retried > 0 || st.Parked > 0 {
				s.Errorf("%+v", st)
			}
			if log := p.log.String(); !strings.Contains(log, "set by an operator") || !strings.Contains(log, "the gateway moves") {
				s.Errorf("%s does not say who has set the breaker:\n%s", p.fleet.ID(), log)
			}
		}
		told := s.told()
		if len(told) != 2 || told[0].By != "ops@host" || told[0].Why != "the gateway moves" || !told[0].Forced || told[1].By != "ops@host" {
			s.Errorf("told on the bus: %+v", told)
		}
	})
}

// told are the changes that the bus tells of, in their order.
func (s *system) told() (all []fleet.Changed) {
	s.Helper()
	cfg := bus.ScanConfig{Filter: s.names.Root("events.breaker.>"), From: 1}
	err := s.bus.ScanMessages(s.Context(), s.names.EventsStream(), cfg, func(m *nats.Msg, _ *nats.MsgMetadata) (bool, error) {
		e, err := event.Decode(m.Header, m.Data)
		if err != nil {
			return false, err
		}
		var c fleet.Changed
		all = append(all, c)
		return true, e.DataAs(&all[len(all)-1])
	})
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// When the time of a forced open is over the breaker is probed like any other.
func TestForcedOpenIsProbedWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		p := s.start()
		s.balanced(1)
		s.registered()
		begun := time.Now()
		after := s.forceOpen(2*time.Second, p)
		s.publish(10)
		if after.Until.IsZero() {
			s.Errorf("opened without an end: %+v", after)
		}
		s.done(10)
		if took := time.Since(begun); took < 2*time.Second {
			s.Errorf("handled after %v", took)
		}
		s.closes()
		if b := s.shared(); b.Forced || b.Why != "all probes have succeeded" {
			s.Errorf("closed: %+v", b)
		}
	})
}

// An operator overrules a prober: what its probe says later does not count.
func TestForcedOpenOverrulesTheProber(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	hang := make(chan struct{})
	s.gateway.down.Store(true)
	s.publish(10)
	s.opens()
	s.gateway.hang.Store(&hang)
	bustest.Eventually(t, soon, func() bool { return s.shared().State == pauses.HalfOpen })
	s.gateway.down.Store(false)
	s.forceOpen(0, p)
	calls := s.gateway.calls.Load()
	s.gateway.hang.Store(nil)
	close(hang)
	s.passes(3 * openFor)
	if b, now := s.shared(), s.gateway.calls.Load(); b.State != pauses.Open || !b.Forced || now > calls+probes {
		t.Errorf("%+v, %d calls since it was opened", b, now-calls)
	}
	if _, _, err := force().Close(t.Context(), s.bus); err != nil {
		t.Fatal(err)
	}
	s.handled(10)
}

// A breaker that an operator has closed opens again by itself if the dependency is down.
func TestForcedCloseDoesNotKeepItClosed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	s.gateway.down.Store(true)
	s.publish(20)
	s.opens()
	if _, _, err := force().Close(t.Context(), s.bus); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() bool { b := s.shared(); return b.State == pauses.Open && b.Opened == 2 })
	s.gateway.down.Store(false)
	s.done(20)
}

func TestForceRefuses(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if all, err := fleet.List(t.Context(), s.bus); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	s.start()
	s.registered()
	if all, err := fleet.List(t.Context(), s.bus); err != nil || len(all) != 1 || all[0].Name() != "payment/gateway" || all[0].State != "closed" {
		t.Errorf("%+v, %v", all, err)
	}
	unknown, nobody := force(), force()
	unknown.Breaker, nobody.By = "gate", ""
	for _, tt := range []struct {
		force fleet.Force
		d     time.Duration
		want  error
	}{
		{unknown, 0, fleet.ErrUnknown},
		{nobody, 0, fleet.ErrConfig},
		{force(), -time.Second, fleet.ErrConfig},
	} {
		if _, _, err := tt.force.Open(t.Context(), s.bus, tt.d); !errors.Is(err, tt.want) {
			t.Errorf("open %+v for %v: %v, want %v", tt.force, tt.d, err, tt.want)
		}
	}
	before, after, err := force().Close(t.Context(), s.bus)
	if err != nil || before != after || after.State != "closed" || after.Forced {
		t.Errorf("closed again: %+v, %+v, %v", before, after, err)
	}
	if told := s.told(); len(told) > 0 {
		t.Errorf("told on the bus: %+v", told)
	}
}

// A process that may not write what is shared has the breaker for itself, and says so
// once, with the grant. It goes on following what others share.
func TestDeniedToShare(t *testing.T) {
	t.Parallel()
	names := event.Names{Prefix: bustest.Prefix()}
	bucket := names.Bucket(event.PausesBucket)
	for denied, follows := range map[string]bool{"$KV." + bucket + ".payment": true, "$JS.API.*.*.*." + "KV_" + bucket + ".>": false} {
		t.Run(fmt.Sprintf("follows %v", follows), func(t *testing.T) {
			t.Parallel()
			s := newSystemOn(t, names, bustest.ServerConfig{Tune: func(o *server.Options) {
				deny := []string{denied, "$JS.API.STREAM.INFO.KV_" + bucket}
				if follows {
					deny = deny[:1]
				}
				o.Users = []*server.User{
					{Username: "admin", Password: "p"},
					{Username: "payment", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: deny}}},
				}
				o.NoAuthUser = "admin"
			}})
			s.user = bus.Config{User: "payment", Password: "p"}
			p := s.start()
			s.gateway.down.Store(true)
			s.publish(20)
			bustest.Eventually(t, soon, func() bool { return p.breaker.State() == resilience.Open })
			s.gateway.down.Store(false)
			s.done(20)
			bustest.Eventually(t, soon, func() bool { return p.breaker.State() == resilience.Closed })
			if st := p.consumer.Stats(); st.Parked > 0 {
				t.Errorf("%+v", st)
			}
			log := p.log.String()
			if n := strings.Count(log, "this process has it for itself"); n != 1 || !strings.Contains(log, "grant this user publish") {
				t.Errorf("said %d times that the breaker is not shared:\n%s", n, log)
			}
			if !follows {
				return
			}
			// Its own changes do not hide those of others, however many there were.
			store := pauses.New(s.bus)
			_, err := store.Update(t.Context(), name, func(d *pauses.Document) bool {
				d.Breakers = map[string]pauses.Breaker{"gateway": {State: pauses.Closed, Term: 1}}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			s.forceOpen(0, p)
		})
	}
}

// A process that has found no bucket shares what it has by itself when there is one,
// although nothing changes. It says once that it could not, and once that it can.
func TestShareIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if err := s.bus.JetStream().DeleteStream(t.Context(), "KV_"+s.names.Bucket(event.PausesBucket)); err != nil {
		t.Fatal(err)
	}
	p := s.start()
	bustest.Eventually(t, soon, func() bool { return strings.Contains(p.log.String(), "this process has it for itself") })
	bustest.Provision(t, s.bus, topology.Config{})
	s.registered()
	bustest.Eventually(t, soon, func() bool { return strings.Contains(p.log.String(), "is shared again") })
	if log := p.log.String(); strings.Count(log, "\n") != 2 {
		t.Errorf("said more than that it has the breaker for itself, and that it is shared again:\n%s", log)
	}
}
