package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

// Of three servers two are down, so that nothing has a leader. What a service
// does at its start waits until they are back; what it does at run time is an
// outage, and never "no stream".
func TestWithoutALeader(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	lines := new(logLines)
	cfg := bus.Config{URL: servers[0].URL(), Names: event.Names{Prefix: bustest.Prefix()}, Wait: time.Minute, Logger: zerolog.New(lines)}
	b := bustest.Connect(t, cfg)
	wanted := topology.Config{Replicas: 3, Buckets: []string{"orders"}}
	if _, err := topology.Provision(t.Context(), b, topology.New(b.Names(), wanted)); err != nil {
		t.Fatal(err)
	}
	bucket, err := bus.OpenBucket[string](t.Context(), b, "orders")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Wait, cfg.Logger = 500*time.Millisecond, zerolog.Nop()
	hasty := bustest.Connect(t, cfg)
	for _, s := range servers {
		s.Stop(t)
	}
	servers[0].Restart(t) // on its own it has never had a leader
	bustest.Eventually(t, time.Minute, func() error { return errors.Join(b.Health(), hasty.Health()) })

	t.Run("at run time", func(t *testing.T) {
		for name, call := range map[string]func() error{
			"publish": func() error {
				_, err := hasty.Publish(t.Context(), newEvent(t, hasty, "k"))
				return err
			},
			"put": func() error {
				_, err := bucket.Put(t.Context(), "k", "v", 0)
				return err
			},
			"read a stream": func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				_, err := hasty.Stream(ctx, hasty.Names().EventsStream())
				return err
			},
			"open a bucket": func() error {
				_, err := bus.OpenBucket[string](t.Context(), hasty, "orders")
				return err
			},
			"provision": func() error {
				_, err := topology.Provision(t.Context(), hasty, topology.New(hasty.Names(), wanted))
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if err := call(); !errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrNoStream) {
					t.Errorf("got %v, want an outage", err)
				}
			})
		}
	})

	t.Run("at start", func(t *testing.T) {
		done := make(chan error, 2)
		go func() {
			_, err := topology.Provision(t.Context(), b, topology.New(b.Names(), wanted))
			done <- err
		}()
		go func() {
			_, err := bus.OpenBucket[string](t.Context(), b, "orders")
			done <- err
		}()
		bustest.Eventually(t, time.Minute, func() error {
			select {
			case err := <-done:
				t.Fatalf("it did not wait: %v", err)
			default:
			}
			if said := lines.with("waiting for JetStream: "); len(said) < 2 {
				return fmt.Errorf("said %q, want both to wait for JetStream", lines.with(""))
			}
			return nil
		})
		servers[1].Restart(t)
		servers[2].Restart(t)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		// A stream is waited for when it is looked at and when it is changed.
		if said, most := lines.with("waiting for"), 2*len(topology.New(b.Names(), wanted).Streams)+1; len(said) > most {
			t.Errorf("said %q, want each wait told once, %d at most", said, most)
		}
	})
}

func TestANoStreamIsToldFromOneWithoutALeader(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	b := bustest.Connect(t, bus.Config{URL: servers[0].URL(), Wait: time.Minute})
	if err := publishTo(t, b, nats.NewMsg("nobody.home")); !errors.Is(err, bus.ErrNoStream) || errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("a subject that no stream stores: %v", err)
	}
	began := time.Now()
	if _, err := bus.OpenBucket[string](t.Context(), b, "nothing"); !errors.Is(err, bus.ErrNoStream) || !strings.Contains(err.Error(), "bucket nothing does not exist") {
		t.Errorf("a bucket that does not exist: %v", err)
	}
	if took := time.Since(began); took > 30*time.Second { // of the minute
		t.Errorf("it was waited for: %s", took)
	}
}

// A leader of JetStream that does not know yet what was decided before says that
// there is no such stream: nobody has to mend that, and it is asked again.
func TestANoStreamOfAClusterIsAskedForAgain(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	names := event.Names{Prefix: bustest.Prefix()}
	admin := bustest.Connect(t, bus.Config{URL: servers[0].URL(), Names: names})
	var created error
	create := sync.OnceFunc(func() {
		_, created = admin.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATE", Subjects: []string{"late"}})
	})
	tap := wiretap.New(servers[0], nil, func(frame []byte) wiretap.Verdict {
		if bytes.Contains(frame, []byte("stream not found")) {
			create()
		}
		return wiretap.Pass
	})
	b := bustest.Connect(t, bus.Config{InProcess: tap, Names: names})
	if _, err := b.Stream(t.Context(), "LATE"); err != nil {
		t.Errorf("it was told once that there is none, and that was believed: %v, %v", err, created)
	}
}

// logLines keeps what is logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

// with returns the lines that contain text.
func (l *logLines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
