package members_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer/internal/members"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

const (
	partitions = 32
	payment    = event.Consumer("payment")
	// soon is enough for everything on a busy machine.
	soon = time.Minute
)

// system is a server of its own with the topology on it.
type system struct {
	*testing.T
	server *bustest.TestServer
	names  event.Names
	bus    *bus.Bus
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{T: t, server: bustest.StartServer(t, bustest.ServerConfig{}), names: event.Names{Prefix: bustest.Prefix()}}
	s.bus = s.connect()
	s.provision()
	return s
}

func (s *system) connect() *bus.Bus {
	s.Helper()
	return bustest.Connect(s, bus.Config{URL: s.server.URL(), Names: s.names})
}

func (s *system) provision() {
	s.Helper()
	_, err := topology.Provision(s.Context(), s.bus, topology.New(s.names, topology.Config{}))
	must(s.T, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// member is one with a connection of its own.
type member struct {
	*members.Group
	t    *testing.T
	bus  *bus.Bus
	log  *lines
	stop context.CancelFunc
	done chan error
}

// member starts one that runs until the test ends.
func (s *system) member(id string) *member {
	s.Helper()
	return start(s.T, s.connect(), id)
}

func start(t *testing.T, b *bus.Bus, id string) *member {
	t.Helper()
	m := &member{t: t, bus: b, log: &lines{}, done: make(chan error, 1)}
	m.Group = members.New(members.Config{Bus: m.bus, Consumer: payment, ID: id, Partitions: partitions, Logger: zerolog.New(m.log)})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	m.stop = cancel
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.done <- m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("%s has logged\n%s", m.ID(), m.log)
		}
	})
	return m
}

// kill ends its connection, as the end of its process would.
func (m *member) kill() {
	m.t.Helper()
	m.bus.Conn().Close()
	if err := <-m.done; !errors.Is(err, bus.ErrClosed) {
		m.t.Errorf("run ended with %v, want that the bus is closed", err)
	}
}

// balanced waits until these are the members for each of them, and have the
// partitions among them.
func balanced(t *testing.T, all ...*member) {
	t.Helper()
	var ids []string
	for _, m := range all {
		ids = append(ids, m.ID())
	}
	slices.Sort(ids)
	bustest.Eventually(t, soon, func() error {
		var owned []int
		for _, m := range all {
			v := m.View()
			if !v.Known || !slices.Equal(idsOf(v.Members), ids) {
				return fmt.Errorf("%s knows %v (%v), want %v", m.ID(), idsOf(v.Members), v.Known, ids)
			}
			owned = append(owned, v.Own...)
		}
		slices.Sort(owned)
		if len(owned) != partitions || len(slices.Compact(owned)) != partitions {
			return fmt.Errorf("owned are %v", owned)
		}
		return nil
	})
}

func idsOf(list []members.Member) (ids []string) {
	for _, m := range list {
		ids = append(ids, m.ID)
	}
	return ids
}

// lines is a log that several goroutines write.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
