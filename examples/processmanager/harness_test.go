package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// within is how long a test waits for what has to happen.
const within = time.Minute

// How a test tells its child process what to do.
const (
	childServer = "FARANDOLE_TEST_SERVER"
	childPrefix = "FARANDOLE_TEST_PREFIX"
)

// TestMain is also the main of the process manager that a test kills.
func TestMain(m *testing.M) {
	if os.Getenv(childServer) == "" {
		bustest.Main(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, bus.Config{URL: os.Getenv(childServer), Names: event.Names{Prefix: os.Getenv(childPrefix)}}, deadline)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// shop is a system: its server and the three services. The manager comes on top.
type shop struct {
	*testing.T
	bus *bus.Bus
}

// open starts the services. answers says how they answer a command about an order, such
// as "shipping.ship ord-1": "refused", or "silence". They do all others.
func open(t *testing.T, answers map[string]string) *shop {
	t.Helper()
	s := &shop{t, bustest.NewBus(t)}
	registry := consumer.NewRegistry()
	for _, p := range parts {
		consumer.Handle(registry, p.do, func(_ context.Context, e event.Event, _ Order) (consumer.Step, error) {
			id := event.PartitionKey(e)
			switch answers[short(e.Type())+" "+string(id)] {
			case "refused":
				return consumer.Emit(p.refused.New(id, Reply{"refused"})), nil
			case "silence":
				return consumer.Step{}, consumer.Skip
			default:
				return consumer.Emit(p.done.New(id, Reply{})), nil
			}
		})
		consumer.Handle(registry, p.undo, func(_ context.Context, e event.Event, _ Order) (consumer.Step, error) {
			return consumer.Emit(p.undone.New(event.PartitionKey(e), Reply{})), nil
		})
	}
	c, err := consumer.New(s.bus, registry, consumer.Config{Name: "services"})
	if err != nil {
		t.Fatal(err)
	}
	s.background(c.Run)
	return s
}

// manage runs a process manager in this process.
func (s *shop) manage(deadline time.Duration) {
	s.background(func(ctx context.Context) error {
		return run(ctx, bus.Config{InProcess: bustest.Server(s.T), Names: s.bus.Names()}, deadline)
	})
}

// background runs f until the test ends.
func (s *shop) background(f func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := f(ctx); err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(func() { stop(); running.Wait() })
}

// process starts a process manager in a process of its own.
func (s *shop) process() *exec.Cmd {
	s.Helper()
	c := exec.CommandContext(s.Context(), os.Args[0])
	c.Env = append(os.Environ(), childServer+"="+bustest.Server(s.T).URL(), childPrefix+"="+s.bus.Names().Prefix)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		s.Fatal(err)
	}
	return c
}

func placed(id event.Key) event.Draft {
	return orderPlaced.New(id, Order{SKU: "anvil", Cents: 125_000})
}

// publish publishes an event about an order, under an id that tells it from others of
// the order.
func (s *shop) publish(d event.Draft, id string) {
	s.Helper()
	d.ID = string(d.Key) + "-" + id
	e, err := s.bus.Seal(d)
	if err == nil {
		_, err = s.bus.Publish(s.Context(), e)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// story returns all events of each order, without the version, in the order in which
// they were stored.
func (s *shop) story() map[string]string {
	s.Helper()
	stories := map[string]string{}
	names := s.bus.Names()
	err := s.bus.ScanMessages(s.Context(), names.EventsStream(), bus.ScanConfig{Filter: names.EventsFilter(), From: 1},
		func(m *nats.Msg, _ *nats.MsgMetadata) (bool, error) {
			e, err := event.Decode(m.Header, m.Data)
			if err != nil {
				return false, err
			}
			id := string(event.PartitionKey(e))
			stories[id] = strings.TrimSpace(stories[id] + " " + short(e.Type()))
			return true, nil
		})
	if err != nil {
		s.Fatal(err)
	}
	return stories
}

// became waits until the story of an order is what is wanted.
func (s *shop) became(id, want string) {
	s.Helper()
	bustest.Eventually(s.T, within, func() error {
		if got := s.story()[id]; got != want {
			return fmt.Errorf("%s:\n got %s\nwant %s", id, got, want)
		}
		return nil
	})
}
