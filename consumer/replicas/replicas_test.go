package replicas_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer/replicas"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/topology"
)

func TestMain(m *testing.M) { bustest.Main(m) }

const within = time.Minute

// fleet is processes that share a rate, each with a connection of its own.
type fleet struct {
	*testing.T
	server *bustest.TestServer
	names  event.Names
	calls  atomic.Int64
	rate   float64
}

func newFleet(t *testing.T, rate float64) *fleet {
	t.Helper()
	f := &fleet{T: t, server: bustest.StartServer(t, bustest.ServerConfig{}), names: event.Names{Prefix: bustest.Prefix()}, rate: rate}
	bustest.Provision(t, f.connect(), topology.Config{})
	return f
}

func (f *fleet) connect() *bus.Bus {
	f.Helper()
	return bustest.Connect(f, bus.Config{URL: f.server.URL(), Names: f.names})
}

// process calls as often as its guard lets it.
type process struct {
	counted atomic.Int64
	// end ends it as it should; die ends its calls and cuts its connection.
	end, die func()
}

func (f *fleet) start() *process {
	f.Helper()
	b := f.connect()
	guard, err := resilience.New(resilience.Config{
		Name: "search", Rate: resilience.RateConfig{PerSecond: f.rate, Burst: int(f.rate / 10), MaxWait: within},
	})
	if err != nil {
		f.Fatal(err)
	}
	p := &process{}
	counting, leave := context.WithCancel(context.WithoutCancel(f.Context()))
	calling, stop := context.WithCancel(context.WithoutCancel(f.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		err := replicas.Run(counting, replicas.Config{Bus: b, Name: "search", Changed: func(n int) {
			guard.SetShare(1 / float64(n))
			p.counted.Store(int64(n))
		}})
		if err != nil && !errors.Is(err, bus.ErrClosed) {
			f.Error(err)
		}
	})
	bustest.Eventually(f, within, func() bool { return p.counted.Load() > 0 })
	for range 4 {
		all.Go(func() {
			for guard.Do(calling, func(context.Context) error { f.calls.Add(1); return nil }) == nil {
			}
		})
	}
	p.end = func() {
		leave()
		stop()
		all.Wait()
	}
	p.die = func() {
		stop()
		if err := b.Close(); err != nil {
			f.Error(err)
		}
		p.end()
	}
	f.Cleanup(p.end)
	return p
}

func (f *fleet) counts(want int64, processes ...*process) {
	f.Helper()
	bustest.Eventually(f, within, func() bool {
		for _, p := range processes {
			if p.counted.Load() != want {
				return false
			}
		}
		return true
	})
}

func TestProcessesCountEachOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 10)
	a := f.start()
	f.counts(1, a)
	b, c := f.start(), f.start()
	f.counts(3, a, b, c)
	b.end()
	f.counts(2, a, c)
	c.die()
	f.counts(1, a)
}

// Every five seconds have the calls that the rate allows, within 10 %, as processes
// come and end. One that dies leaves its part unused until the others know.
func TestSharedRateIsKeptWhileProcessesComeAndGo(t *testing.T) {
	t.Parallel()
	const rate, window, unknown = 300, 5 * time.Second, 6 * time.Second
	f := newFleet(t, rate)
	a, b := f.start(), f.start()
	f.counts(2, a, b)
	type sample struct {
		at    time.Duration
		calls int64
	}
	var samples []sample
	begin := time.Now()
	until := func(d time.Duration) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for time.Since(begin) < d {
			<-tick.C
			samples = append(samples, sample{time.Since(begin), f.calls.Load()})
		}
	}
	until(2 * time.Second)
	c := f.start()
	until(4 * time.Second)
	b.end()
	until(9 * time.Second)
	died := time.Since(begin)
	c.die()
	until(9*time.Second + unknown + window)
	for i, first := range samples {
		for _, last := range samples[i:] {
			took := last.at - first.at
			if took < window {
				continue
			}
			got := float64(last.calls-first.calls) / (rate * took.Seconds())
			least := 0.9
			if last.at > died && first.at < died+unknown {
				least = 0.5 - 0.1 // half of the rate was one's that has died
			}
			if got < least || got > 1.1 {
				t.Errorf("from %v to %v: %.2f of the rate, want %.2f to 1.10", first.at, last.at, got, least)
			}
			break
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	for name, cfg := range map[string]replicas.Config{
		"nothing":  {},
		"no bus":   {Name: "search", Changed: func(int) {}},
		"no one":   {Name: "search", Bus: b},
		"bad name": {Name: "Search", Bus: b, Changed: func(int) {}},
	} {
		if err := replicas.Run(t.Context(), cfg); !errors.Is(err, replicas.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
