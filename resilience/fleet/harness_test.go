package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/resilience/fleet"
	"github.com/farandole/farandole/topology"
)

const (
	name = event.Consumer("payment")
	// soon is enough for everything on a busy machine.
	soon = time.Minute

	failures, probes, handlers = 3, 2, 4
	openFor                    = 400 * time.Millisecond
)

var (
	placed  = event.Define[struct{}]("order.placed.v1")
	errDown = errors.New("gateway is down")
)

// gateway is a dependency that is down at times, and counts its calls.
type gateway struct {
	down   atomic.Bool
	calls  atomic.Int64
	hang   atomic.Pointer[chan struct{}]
	panics atomic.Bool // at its next call
}

func (g *gateway) call(ctx context.Context) error {
	g.calls.Add(1)
	if hang := g.hang.Load(); hang != nil {
		select {
		case <-*hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if g.panics.CompareAndSwap(true, false) {
		panic("gateway")
	}
	if g.down.Load() {
		return errDown
	}
	return nil
}

// system is a consumer in several processes that need a gateway.
type system struct {
	*testing.T
	gateway    gateway
	partitions bool
	server     *bustest.TestServer
	names      event.Names
	bus        *bus.Bus
	user       bus.Config // how processes log in; zero for everybody

	mu   sync.Mutex
	runs map[string]int // handlers that have come to their end, by event
}

// eachKind runs a test with competing replicas and with partitions.
func eachKind(t *testing.T, test func(s *system)) {
	t.Helper()
	for kind, partitions := range map[string]bool{"competing": false, "partitions": true} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.partitions = partitions
			test(s)
		})
	}
}

func newSystem(t *testing.T) *system {
	t.Helper()
	return newSystemOn(t, event.Names{Prefix: bustest.Prefix()}, bustest.ServerConfig{})
}

func newSystemOn(t *testing.T, names event.Names, cfg bustest.ServerConfig) *system {
	t.Helper()
	s := &system{T: t, server: bustest.StartServer(t, cfg), names: names, runs: map[string]int{}}
	s.bus = s.connect()
	bustest.Provision(t, s.bus, topology.Config{})
	return s
}

func (s *system) connect() *bus.Bus {
	s.Helper()
	cfg := s.user
	cfg.URL, cfg.Names, cfg.Source = s.server.URL(), s.names, "/test"
	return bustest.Connect(s, cfg)
}

// process is one of the consumer's processes.
type process struct {
	*system
	bus      *bus.Bus
	consumer *consumer.Consumer
	breaker  *resilience.Breaker
	guard    *resilience.Guard
	fleet    *fleet.Breaker
	log      *lines
	stop     func()
}

// start starts a process that runs until the test ends.
func (s *system) start() *process {
	s.Helper()
	p := &process{system: s, bus: s.connect(), log: &lines{}}
	var err error
	must := func() {
		s.Helper()
		if err != nil {
			s.Fatal(err)
		}
	}
	p.breaker, err = resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway", Failures: failures, OpenFor: openFor, Probes: probes})
	must()
	p.guard, err = resilience.New(resilience.Config{Name: "gateway", Breaker: p.breaker})
	must()
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, p.handle)
	cfg := consumer.Config{
		Name: name, Source: "/payment", Concurrency: handlers, Lease: 5 * time.Second, HandlerTimeout: 5 * time.Second,
		Retry: consumer.RetryPolicy{MaxAttempts: 5, BaseDelay: 10 * time.Millisecond, MaxDelay: 20 * time.Millisecond},
	}
	if s.partitions {
		cfg.Ledger, err = dedup.NewPartitions(p.bus, dedup.PartitionsConfig{})
		must()
	}
	p.consumer, err = consumer.New(p.bus, r, cfg)
	must()
	p.fleet, err = fleet.New(p.bus, fleet.Config{Consumer: name, Breaker: p.breaker, Ramp: 200 * time.Millisecond, Logger: zerolog.New(p.log)})
	must()
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	var both sync.WaitGroup
	both.Go(func() { p.fleet.Run(ctx, p.consumer) })
	both.Go(func() { _ = p.consumer.Run(ctx) }) //nolint:errcheck // one that lost its connection
	p.stop = sync.OnceFunc(func() {
		cancel()
		both.Wait()
	})
	s.Cleanup(func() {
		p.stop()
		if s.Failed() {
			s.Logf("%s has logged\n%s", p.fleet.ID(), p.log)
		}
	})
	return p
}

// kill ends a process's connection, as its death would.
func (p *process) kill() {
	p.Helper()
	p.bus.Conn().Close()
	p.stop()
}

func (p *process) handle(ctx context.Context, e event.Event, _ struct{}) (consumer.Step, error) {
	if err := p.guard.Do(ctx, p.gateway.call); err != nil {
		return consumer.Step{}, p.fleet.Excuse(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[e.ID()]++
	return consumer.Step{}, nil
}

// publish stores n events, each with a key of its own.
func (s *system) publish(n int) {
	s.Helper()
	for i := range n {
		e, err := s.bus.Seal(placed.New(event.Key(fmt.Sprintf("o-%d-%d", time.Now().UnixNano(), i)), struct{}{}))
		if err == nil {
			_, err = s.bus.Publish(s.Context(), e)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
}

// done waits until so many events have been handled, each once.
func (s *system) done(n int) {
	s.Helper()
	s.handled(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, runs := range s.runs {
		if runs != 1 {
			s.Errorf("%s was handled %d times", id, runs)
		}
	}
}

// handled waits until so many events have been handled. What a process does that dies
// may be done again.
func (s *system) handled(n int) {
	s.Helper()
	bustest.Eventually(s, soon, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.runs) < n {
			return fmt.Errorf("%d of %d events handled", len(s.runs), n)
		}
		return nil
	})
}

// shared is what the processes agree on.
func (s *system) shared() pauses.Breaker {
	s.Helper()
	d, err := pauses.New(s.bus).Get(s.Context(), name)
	if err != nil {
		s.Fatal(err)
	}
	return d.Breakers["gateway"]
}

func (s *system) opens() {
	s.Helper()
	bustest.Eventually(s, soon, func() bool { return s.shared().State == pauses.Open })
}

func (s *system) closes() {
	s.Helper()
	bustest.Eventually(s, soon, func() bool { return s.shared().State == pauses.Closed })
}

// changes counts the events that tell of changes, by their type.
func (s *system) changes() map[event.Type]int {
	s.Helper()
	counts := map[event.Type]int{}
	err := s.bus.ScanMessages(s.Context(), s.names.EventsStream(), bus.ScanConfig{Filter: s.names.EventsFilter(), From: 1}, countTypes(counts))
	if err != nil {
		s.Fatal(err)
	}
	return counts
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
