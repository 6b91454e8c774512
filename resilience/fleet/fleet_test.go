package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/resilience/fleet"
	"github.com/farandole/farandole/topology"
)

func countTypes(counts map[event.Type]int) func(*nats.Msg, *nats.MsgMetadata) (bool, error) {
	return func(m *nats.Msg, _ *nats.MsgMetadata) (bool, error) {
		if e, err := event.Decode(m.Header, m.Data); err == nil {
			counts[event.Type(e.Type())]++
		}
		return true, nil
	}
}

// balanced waits until the processes share all partitions, if there are any.
func (s *system) balanced(members int) {
	s.Helper()
	if !s.partitions {
		return
	}
	bustest.Eventually(s, soon, func() error {
		st, err := consumer.Look(s.Context(), s.bus, name)
		if err != nil {
			return err
		}
		owners := map[string]bool{}
		for _, p := range st.Partitions {
			owners[p.Owner] = p.Owned
		}
		if len(owners) != members {
			return fmt.Errorf("owners are %v", owners)
		}
		return nil
	})
}

// A dependency that is down for many open periods is called only by what was under way
// and by probes. No event is parked, and only the failures before the opening are attempts.
func TestDownForFiveOpenPeriods(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		const events = 200
		first := s.start()
		s.balanced(1)
		second := s.start()
		s.balanced(2)
		s.gateway.down.Store(true)
		s.publish(events)
		s.opens()
		begun, periods := time.Now(), 0
		for at := s.shared().At; periods < 5; {
			bustest.Eventually(s, soon, func() bool {
				b := s.shared()
				again := b.State == pauses.Open && b.At.After(at)
				if again {
					at = b.At
				}
				return again
			})
			periods++
		}
		if took := time.Since(begun); took < 4*openFor {
			s.Errorf("five periods took %v: a failed probe opens for the full time", took)
		}
		calls := s.gateway.calls.Load()
		// The last period may have ended since.
		if most := int64(2*(failures+handlers) + probes*(periods+2)); calls > most {
			s.Errorf("%d calls while the dependency was down, want at most %d", calls, most)
		}
		s.gateway.down.Store(false)
		s.done(events)
		s.closes()
		for _, p := range []*process{first, second} {
			st := p.consumer.Stats()
			if st.Parked > 0 || st.Retried > failures+handlers {
				s.Errorf("%+v", st)
			}
			bustest.Eventually(s, soon, func() bool { return p.breaker.State() == resilience.Closed && p.fleet.State() == resilience.Closed })
		}
		if b := s.shared(); b.Opened != 1 {
			s.Errorf("opened %d times from closed", b.Opened)
		}
		bustest.Eventually(s, soon, func() error { // an event comes after the change
			told := s.changes()
			if told[fleet.Opened.Type()] < periods || told[fleet.HalfOpened.Type()] < periods || told[fleet.Closed.Type()] != 1 {
				return fmt.Errorf("told on the bus: %v", told)
			}
			return nil
		})
	})
}

// What the processes hold when the breaker opens stays theirs, and the server delivers
// nothing more, to whomever.
func TestOpeningPausesTheConsumerAtTheServer(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		s.start()
		s.balanced(1)
		s.gateway.down.Store(true)
		s.publish(20)
		bustest.Eventually(s, soon, func() error {
			st, err := consumer.Look(s.Context(), s.bus, name)
			if err != nil {
				return err
			}
			for _, d := range st.Durables {
				if !d.PausedUntil.IsZero() {
					return nil
				}
			}
			return errors.New("no durable is paused")
		})
		s.gateway.down.Store(false)
		s.done(20)
	})
}

// The process that opened the breaker dies: the others resume by themselves.
func TestOpenerDies(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		opener := s.start()
		s.gateway.down.Store(true)
		s.publish(30)
		s.opens()
		s.start()
		opener.kill()
		s.gateway.down.Store(false)
		s.handled(30)
		s.closes()
	})
}

// The process that probes dies in the middle of its probe: another one probes.
func TestProberDies(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		first := s.start()
		s.balanced(1)
		second := s.start()
		s.balanced(2)
		hang := make(chan struct{})
		s.gateway.down.Store(true)
		s.publish(40)
		s.opens()
		s.gateway.hang.Store(&hang)
		var prober string
		bustest.Eventually(s, soon, func() bool {
			b := s.shared()
			prober = b.Prober
			return b.State == pauses.HalfOpen
		})
		s.gateway.down.Store(false)
		s.gateway.hang.Store(nil)
		for _, p := range []*process{first, second} {
			if p.fleet.ID() == prober {
				p.kill()
			}
		}
		close(hang)
		s.handled(40)
		s.closes()
	})
}

// The prober is told to stop in the middle of its probe, which is cut off and spends no
// attempt: another one probes.
func TestProberStops(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		first := s.start()
		s.balanced(1)
		second := s.start()
		s.balanced(2)
		hang := make(chan struct{})
		s.gateway.down.Store(true)
		s.publish(40)
		s.opens()
		s.gateway.hang.Store(&hang)
		var prober string
		bustest.Eventually(s, soon, func() bool {
			b := s.shared()
			prober = b.Prober
			return b.State == pauses.HalfOpen
		})
		s.gateway.down.Store(false)
		s.gateway.hang.Store(nil)
		other := second
		for _, p := range []*process{first, second} {
			if p.fleet.ID() == prober {
				p.stop()
			} else {
				other = p
			}
		}
		close(hang)
		s.done(40)
		s.closes()
		if st := other.consumer.Stats(); st.Parked > 0 {
			s.Errorf("%+v", st)
		}
	})
}

// A probe that panics says nothing of the dependency: the breaker neither closes, nor
// stays half-open for ever.
func TestProbePanics(t *testing.T) {
	t.Parallel()
	eachKind(t, func(s *system) {
		s.start()
		s.gateway.down.Store(true)
		s.publish(10)
		s.opens()
		s.gateway.panics.Store(true)
		bustest.Eventually(s, soon, func() bool { return !s.gateway.panics.Load() })
		if b := s.shared(); b.State == pauses.Closed {
			s.Errorf("closed by a probe that has panicked: %+v", b)
		}
		s.gateway.down.Store(false)
		s.done(10)
		s.closes()
	})
}

// Both processes open at once: it is one opening, and one of them probes.
func TestTwoOpenAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	both := []*process{s.start(), s.start()}
	bustest.Eventually(t, soon, func() bool { return s.shared().State == pauses.Closed })
	s.gateway.down.Store(true)
	start := make(chan struct{})
	for _, p := range both {
		go func() {
			<-start
			for range failures {
				if permit, err := p.breaker.Allow(); err == nil {
					permit.Done(resilience.Failure, errDown)
				}
			}
		}()
	}
	close(start)
	s.opens()
	bustest.Eventually(t, soon, func() bool {
		return both[0].fleet.State() != resilience.Closed && both[1].fleet.State() != resilience.Closed
	})
	if b := s.shared(); b.Opened != 1 {
		t.Errorf("opened %d times", b.Opened)
	}
	s.gateway.down.Store(false)
	s.publish(10)
	s.done(10)
	s.closes()
}

// NATS restarts while the breaker is open: it stays open until its time is over, and closes.
func TestNATSRestartsWhileOpen(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	s.gateway.down.Store(true)
	s.publish(10)
	s.opens()
	s.server.Stop(t)
	s.gateway.down.Store(false)
	s.server.Restart(t)
	s.handled(10)
	s.closes()
}

// Without the bucket each process has the breaker for itself, and says so once.
func TestNoBucket(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if err := s.bus.JetStream().DeleteKeyValue(t.Context(), s.names.Bucket(event.PausesBucket)); err != nil {
		t.Fatal(err)
	}
	p := s.start()
	s.gateway.down.Store(true)
	s.publish(20)
	bustest.Eventually(t, soon, func() bool { return p.breaker.State() == resilience.Open })
	s.gateway.down.Store(false)
	s.done(20)
	if st := p.consumer.Stats(); st.Parked > 0 {
		t.Errorf("%+v", st)
	}
	if n := strings.Count(p.log.String(), "this process has it for itself"); n != 1 {
		t.Errorf("said %d times that the breaker is not shared", n)
	}
	bustest.Provision(t, s.bus, topology.Config{})
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	breaker, err := resilience.NewBreaker(resilience.BreakerConfig{Name: "Gate Way"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = fleet.New(b, fleet.Config{Consumer: "No Name", Breaker: breaker, Ramp: -1})
	for _, want := range []string{"No Name", "Gate Way", "Ramp"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not tell of %s", err, want)
		}
	}
	if _, err = fleet.New(b, fleet.Config{Consumer: name}); !errors.Is(err, fleet.ErrConfig) {
		t.Errorf("error %v, want ErrConfig", err)
	}
}
