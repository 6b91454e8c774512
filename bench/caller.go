package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/resilience/fleet"
)

// callRole is the first argument of this program when it is to be a consumer whose
// handler calls a dependency, in a process of its own.
const callRole = "call"

// caller is what such a process does.
type caller struct {
	dependency string // URL
	shared     bool   // all processes share a breaker; else there is none
}

func (c caller) args() []string { return []string{c.dependency, strconv.FormatBool(c.shared)} }

// called is what the process prints, a line each.
type called struct {
	Handled uint64 `json:"handled"`
	Parked  uint64 `json:"parked"`
	// Opened is when the breaker of this process found out that the dependency is down, in
	// ns since 1970, and Idle when no handler ran any more and none may begin; 0 before.
	Opened int64 `json:"opened"`
	Idle   int64 `json:"idle"`
}

// The settings of payment, but for the name.
func callBreaker() resilience.BreakerConfig {
	return resilience.BreakerConfig{
		Name: "dependency", FailureRate: 0.75, WindowCalls: callThreshold, MinCalls: callThreshold, OpenFor: callOpenFor, Probes: callProbes,
	}
}

const (
	callThreshold = 20
	callOpenFor   = time.Second
	callProbes    = 3
	callHandlers  = 16
)

// calling is the process while it runs.
type calling struct {
	consumer *consumer.Consumer
	fleet    *fleet.Breaker // nil if there is none
	client   *http.Client
	url      string

	running      atomic.Int64
	opened, idle atomic.Int64
}

// call handles events of the stage with the given prefix until it is interrupted.
func call(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) != 4 {
		return fmt.Errorf("%w: %s URL PREFIX DEPENDENCY SHARED", errUsage, callRole)
	}
	shared, err := strconv.ParseBool(args[3])
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	b, err := bus.Connect(ctx, bus.Config{URL: args[0], Names: event.Names{Prefix: args[1]}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	c := &calling{url: args[2], client: &http.Client{}}
	if err := c.prepare(b, shared); err != nil {
		return err
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if shared {
		beside.Go(func() { c.fleet.Run(ctx, c.consumer) })
	}
	beside.Go(func() { c.tell(ctx, json.NewEncoder(out)) })
	return c.consumer.Run(ctx)
}

// prepare makes the consumer.
func (c *calling) prepare(b *bus.Bus, shared bool) error {
	base := &http.Transport{MaxIdleConnsPerHost: callHandlers}
	c.client.Transport = base
	if shared {
		breaker, err := resilience.NewBreaker(callBreaker())
		if err != nil {
			return err
		}
		breaker.Notify(func(t resilience.Transition) {
			if t.Event == resilience.EventFailureRate {
				c.opened.CompareAndSwap(0, time.Now().UnixNano())
			}
		})
		guard, err := resilience.New(resilience.Config{Name: "dependency", Breaker: breaker})
		if err != nil {
			return err
		}
		c.client.Transport = resilience.NewTransport(guard, base)
		if c.fleet, err = fleet.New(b, fleet.Config{Consumer: hopbench.ConsumerName, Breaker: breaker}); err != nil {
			return err
		}
	}
	r := consumer.NewRegistry()
	consumer.Handle(r, hopbench.In, func(ctx context.Context, e event.Event, data hopbench.Data) (consumer.Step, error) {
		if err := c.get(ctx); err != nil {
			if shared {
				err = c.fleet.Excuse(err)
			}
			return consumer.Step{}, err
		}
		return consumer.Emit(hopbench.Out.New(event.PartitionKey(e), data)), nil
	})
	var err error
	c.consumer, err = consumer.New(b, r, consumer.Config{
		Name: hopbench.ConsumerName, Source: "/" + hopbench.ConsumerName, Concurrency: callHandlers,
	})
	return err
}

// get calls the dependency.
func (c *calling) get(ctx context.Context) error {
	c.running.Add(1)
	defer c.running.Add(-1)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errExpected, resp.Status)
	}
	return nil
}

// tell prints how far the process is, and takes note of when it is idle.
func (c *calling) tell(ctx context.Context, lines *json.Encoder) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var told time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if c.fleet != nil && c.fleet.State() != resilience.Closed && c.running.Load() == 0 {
				c.idle.CompareAndSwap(0, now.UnixNano())
			}
			if now.Sub(told) < progressEvery {
				continue
			}
			told = now
			st := c.consumer.Stats()
			if lines.Encode(called{Handled: st.Handled, Parked: st.Parked, Opened: c.opened.Load(), Idle: c.idle.Load()}) != nil {
				return // nobody reads any more
			}
		}
	}
}
