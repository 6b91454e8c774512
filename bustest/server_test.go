package bustest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 60 * time.Second

var pinged = event.Define[string]("test.pinged.v1")

func publish(t *testing.T, b *bus.Bus) bus.Receipt {
	t.Helper()
	e, err := b.Seal(pinged.New("k", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBusesOnTheSharedServerDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	for range 2 {
		if r := publish(t, bustest.NewBus(t)); r.Sequence != 1 {
			t.Errorf("another bus has published before: %+v", r)
		}
	}
}

func TestTopologyEndsWithTheTest(t *testing.T) {
	t.Parallel()
	var names event.Names
	t.Run("inner", func(t *testing.T) {
		b := bustest.NewBus(t)
		publish(t, b)
		names = b.Names()
	})
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: names})
	p, err := topology.NewPlan(t.Context(), b, topology.New(b.Names(), topology.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Steps {
		if s.Action != topology.ActionCreate {
			t.Errorf("stream %s is left", s.Stream)
		}
	}
}

func TestAServerOfItsOwnKeepsDataAndAddressAcrossARestart(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{SyncAlways: true})
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: s.URL()}), topology.Config{})
	publish(t, b)
	s.Stop(t)
	s.Stop(t)
	if _, err := s.InProcessConn(); err == nil {
		t.Error("a stopped server accepts connections")
	}
	bustest.Eventually(t, soon, func() bool { return errors.Is(b.Health(), bus.ErrUnavailable) })
	s.Restart(t)
	bustest.Eventually(t, soon, b.Health)
	if r := publish(t, b); r.Sequence != 2 {
		t.Errorf("data is lost: %+v", r)
	}
}

// idle lets the server count what the connection has sent: a reload that ends the
// connection reads these counts without a lock (nats-server 2.15.2).
func idle(t *testing.T, b *bus.Bus) {
	t.Helper()
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestReloadChangesOptionsOfTheRunningServer(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{URL: s.URL()})
	idle(t, b)
	s.Reload(t, func(o *server.Options) { o.Authorization = "token" })
	bustest.Eventually(t, soon, func() bool { return b.Health() != nil })
	bustest.Connect(t, bus.Config{URL: s.URL(), Token: "token"})
}
