package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// TestConsumersOutliveTheirLeaders starts replicas of a service while a cluster
// forms, and then takes the majority of the servers away under load. The handler
// keeps its state in a bucket, as payment does.
func TestConsumersOutliveTheirLeaders(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	urls := make([]string, len(servers))
	for i, s := range servers {
		urls[i] = s.URL()
	}
	s := &system{tb: t, url: strings.Join(urls, ",")}
	s.bus = bustest.Connect(t, bus.Config{URL: s.url, Names: event.Names{Prefix: bustest.Prefix()}})
	if _, err := topology.Provision(t.Context(), s.bus, topology.New(s.bus.Names(), topology.Config{Replicas: 3, Buckets: []string{"orders"}})); err != nil {
		t.Fatal(err)
	}
	everyServer(func(s *bustest.TestServer) { s.Stop(t) }, servers...)

	const replicas, events = 8, 200
	started := make(chan *process, replicas)
	for range replicas {
		go func() { started <- s.startWithBucket() }()
	}
	everyServer(func(s *bustest.TestServer) { s.Restart(t) }, servers...)
	processes := make([]*process, replicas)
	for i := range processes {
		processes[i] = <-started
	}
	for _, p := range processes {
		bustest.Eventually(t, soon, func() error {
			select {
			case <-p.done:
				t.Fatalf("ended at its start: %v", p.err)
			default:
			}
			return p.Health()
		})
	}

	sent := s.publishN(events / 2)
	everyServer(func(s *bustest.TestServer) { s.Stop(t) }, servers[:2]...)
	bustest.Eventually(t, soon, func() bool { return processes[0].Health() != nil })
	everyServer(func(s *bustest.TestServer) { s.Restart(t) }, servers[:2]...)
	for i := range events / 2 {
		bustest.Eventually(t, soon, func() error { // the publisher's outage is its own to mend
			e, err := s.bus.Seal(draft(fmt.Sprint("late-", i)))
			if err == nil {
				_, err = s.bus.Publish(t.Context(), e)
			}
			if err == nil {
				sent = append(sent, e)
			}
			return err
		})
	}
	s.settled("payment")
	// A step whose answer was lost is counted when it comes again, as a duplicate:
	// what was handled is for the marks to say.
	for _, e := range sent {
		if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures != 0 {
			t.Errorf("%s is %s after %d failures, want done, and no attempt spent on an outage", e.ID(), m.State, m.Failures)
		}
	}
	for _, p := range processes {
		if st := p.Stats(); st.Parked > 0 || st.Retried > 0 {
			t.Errorf("%+v, want no attempt spent on an outage", st)
		}
		bustest.Eventually(t, soon, p.Health)
	}
}

// everyServer does something with servers at once: one alone would wait for others.
func everyServer(do func(*bustest.TestServer), servers ...*bustest.TestServer) {
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() { do(s) })
	}
	all.Wait()
}

// startWithBucket starts a consumer whose handler counts in a bucket.
func (s *system) startWithBucket() *process {
	var orders *bus.Bucket[int]
	cfg := config()
	cfg.Lease, cfg.HandlerTimeout = 10*time.Second, 10*time.Second
	p := s.prepare(cfg, handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		n, revision, err := orders.Get(ctx, event.Key(e.ID()))
		if err == nil {
			_, err = orders.Put(ctx, event.Key(e.ID()), n+1, revision)
		}
		if errors.Is(err, bus.ErrConflict) { // an earlier run has, and was not told
			err = nil
		}
		return consumer.Step{}, err
	}), func(_ *process, l dedup.Ledger) dedup.Ledger { return l })
	var err error
	if orders, err = bus.OpenBucket[int](s.tb.Context(), p.bus, "orders"); err != nil {
		s.tb.Error(err)
	}
	p.run()
	s.tb.Cleanup(func() {
		if err := p.stop(); err != nil {
			s.tb.Errorf("Run: %v", err)
		}
	})
	return p
}
