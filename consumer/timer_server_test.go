package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// TestTimersBesideAtomicBatches: with the ledger by partition a timer is set before the
// batch of its step and ended after it.
func TestTimersBesideAtomicBatches(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	p := s.start(config(), timingBy(inData), nil)
	set, cancelled := s.cancelHalf(20, func() {})
	s.fired(set...)
	s.notFired(cancelled...)
	if st := p.Stats(); st.Parked+st.Retried != 0 {
		t.Errorf("stats %+v, want no failures", st)
	}
}

// TestTimerOfManyBesideAtomicBatches: many steps set one timer at once.
func TestTimerOfManyBesideAtomicBatches(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	p := s.start(config(), handling(func(context.Context, event.Event) (consumer.Step, error) {
		return consumer.Step{Timers: []consumer.Timer{deadline("all", time.Hour)}}, nil
	}), nil)
	const orders = 20
	s.publishN(orders)
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == orders })
	if n := len(s.waiting("all")); n != 1 {
		t.Errorf("%d timers wait, want one", n)
	}
	if st := p.Stats(); st.Parked+st.Retried != 0 {
		t.Errorf("stats %+v, want no failures", st)
	}
}

func TestTimersSurviveARestart(t *testing.T) {
	t.Parallel()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: server.URL(), Names: event.Names{Prefix: bustest.Prefix()}}), topology.Config{})
	s := &system{tb: t, bus: b, url: server.URL()}
	p := s.prepare(config(), timingBy(inData), nil)
	p.run()
	set, cancelled := s.cancelHalf(4, func() {})
	// The durable can say that all is settled a moment before it hears of an event.
	// Four events have set timers, and two have cancelled one.
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled%6 == 0 })
	if err := p.stop(); err != nil { // nobody needs to be there when the time comes
		t.Fatal(err)
	}
	server.Restart(t)
	bustest.Eventually(t, soon, b.Health)
	s.fired(set...)
	s.notFired(cancelled...)
}

func TestTimersSurviveLeaderChanges(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	b := bustest.Connect(t, bus.Config{URL: servers[0].URL(), Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{Replicas: 3})
	s := &system{tb: t, bus: b, url: servers[0].URL()}
	s.start(config(), timingBy(inData), nil)
	set, cancelled := s.cancelHalf(20, s.stepDown)
	s.stepDown()
	s.fired(set...)
	s.notFired(cancelled...)
}

// stepDown makes other servers the leaders of timers and events.
func (s *system) stepDown() {
	s.tb.Helper()
	s.stepDownOf(s.bus.Names().TimersStream())
	s.stepDownOf(s.bus.Names().EventsStream())
}

// stepDownOf makes another server the leader of a stream, and waits until that
// one works.
func (s *system) stepDownOf(name string) {
	s.tb.Helper()
	ctx := s.tb.Context()
	leader := func() string {
		stream, err := s.bus.JetStream().Stream(ctx, name)
		if err != nil || stream.CachedInfo().Cluster == nil {
			return ""
		}
		return stream.CachedInfo().Cluster.Leader
	}
	before := ""
	bustest.Eventually(s.tb, soon, func() error {
		if before = leader(); before == "" {
			return errors.New("no leader")
		}
		_, err := s.bus.Conn().RequestWithContext(ctx, s.bus.APIPrefix()+"STREAM.LEADER.STEPDOWN."+name, nil)
		return err
	})
	bustest.Eventually(s.tb, soon, func() error {
		if now := leader(); now == "" || now == before {
			return fmt.Errorf("leader is %q, was %q", now, before)
		}
		c, err := s.bus.JetStream().OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{})
		if err == nil {
			_, err = c.Info(ctx)
		}
		return err
	})
}
