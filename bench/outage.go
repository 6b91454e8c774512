package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/terminal"
)

// outageFigures is what an outage of a dependency costs, a figure for each repetition.
type outageFigures struct {
	Outage    time.Duration `json:"outage_ns"`
	Waiting   int           `json:"waiting"`
	Processes int           `json:"processes"`
	Handlers  int           `json:"handlers_each"`
	// Idle is from when the first process finds out until no handler of any process
	// runs, nor may begin, in ms.
	Idle []float64 `json:"idle_ms"`
	// Calls are those that reach the dependency while it is down, and Allowed is how many may.
	Calls   []float64 `json:"calls"`
	Allowed int       `json:"allowed"`
	// Unprotected and Parked are the calls and the dead letters without a breaker.
	Unprotected []float64 `json:"unprotected_calls"`
	Parked      []float64 `json:"unprotected_dead_letters"`
	// Drain is from the dependency's recovery until all events are handled, and Without
	// how long that takes if there is no outage, in s.
	Drain   []float64 `json:"drain_s"`
	Without []float64 `json:"without_outage_s"`
}

const (
	callProcesses = 3
	// callTakes is how long the dependency takes for an answer, whatever it says.
	callTakes = 10 * time.Millisecond
	// warmUp is how many events are handled before, so that all connections are there.
	warmUp = 300
	// holdFor is how long events are held back at most until all are stored.
	holdFor = time.Minute
	// heldAfter is how long a process may take until it knows that it is held.
	heldAfter = 500 * time.Millisecond
)

// dependency answers calls, and counts those that come while it is down.
type dependency struct {
	url    string
	server *http.Server
	down   atomic.Bool
	calls  atomic.Int64
}

func startDependency(ctx context.Context) (*dependency, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", localhost+":0")
	if err != nil {
		return nil, err
	}
	d := &dependency{url: "http://" + listener.Addr().String()}
	d.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		down := d.down.Load()
		if down {
			d.calls.Add(1)
		}
		<-time.After(callTakes)
		if down {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	go d.server.Serve(listener) //nolint:errcheck // it ends by Close
	return d, nil
}

// outage measures what the outage of a dependency costs three processes.
func (b *bench) outages(ctx context.Context) error {
	connect, err := b.single(ctx)
	if err != nil {
		return err
	}
	windows := int(math.Ceil(float64(b.outage) / float64(callOpenFor)))
	f := &outageFigures{
		Outage: b.outage, Waiting: b.held, Processes: callProcesses, Handlers: callHandlers,
		Allowed: callProcesses*(callThreshold+callHandlers) + windows*callProbes,
	}
	for range b.reps {
		for _, r := range []outageRun{{shared: true}, {shared: true, outage: b.outage}, {outage: b.outage}} {
			if err := b.suffer(ctx, connect, &r); err != nil {
				return err
			}
			b.say("outage: shared breaker %v, down for %v: %d calls, %d dead letters, idle after %v, drained in %v", r.shared, r.outage,
				r.calls, r.parked, r.idle.Round(time.Millisecond), r.drain.Round(time.Millisecond))
			switch {
			case r.outage == 0:
				f.Without = append(f.Without, r.drain.Seconds())
			case r.shared:
				f.Idle, f.Calls, f.Drain = append(f.Idle, 1000*r.idle.Seconds()), append(f.Calls, float64(r.calls)), append(f.Drain, r.drain.Seconds())
			default:
				f.Unprotected, f.Parked = append(f.Unprotected, float64(r.calls)), append(f.Parked, float64(r.parked))
			}
		}
	}
	b.results.Outage = f
	return b.printOutage(f)
}

func (b *bench) printOutage(f *outageFigures) error {
	if err := b.title("a dependency is down for %v: %d processes, %d handlers each, %s events wait, median of %d", f.Outage, f.Processes, f.Handlers,
		terminal.Number(f.Waiting), b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", ">shared breaker", ">no breaker", ">no outage")
	number := func(values []float64) string { return terminal.Number(int(median(values))) }
	table.Row("from opening until all are idle", fmt.Sprintf("%.0f ms", median(f.Idle)), "-", "-")
	table.Row("calls while it is down", fmt.Sprintf("%s of %s allowed", number(f.Calls), terminal.Number(f.Allowed)), number(f.Unprotected), "-")
	table.Row("dead letters", "0", number(f.Parked), "0")
	table.Row("until all are handled", fmt.Sprintf("%.1f s after recovery", median(f.Drain)), "-", fmt.Sprintf("%.1f s", median(f.Without)))
	_, err := table.WriteTo(b.out)
	return err
}

// outageRun is one run and what was measured.
type outageRun struct {
	shared bool
	outage time.Duration // 0 for none

	calls  int64
	parked uint64
	idle   time.Duration
	drain  time.Duration
}

// suffer has events wait for processes that need a dependency which is down, and then is not.
func (b *bench) suffer(ctx context.Context, connect bus.Config, r *outageRun) (err error) {
	s, err := hopbench.Open(ctx, connect, hopbench.Prefix(), 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	d, err := startDependency(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.server.Close()) }()
	fleet := &callers{last: make([]called, callProcesses)}
	defer func() { err = errors.Join(err, fleet.end()) }()
	for i := range callProcesses {
		child, err := b.startChild(ctx, callRole, connect.URL, s, caller{d.url, r.shared}.args())
		if err != nil {
			return err
		}
		fleet.follow(i, child)
	}
	if err := s.Publish(ctx, 0, warmUp); err != nil {
		return err
	}
	if _, err := fleet.ended(ctx, warmUp); err != nil {
		return err
	}
	pause := consumer.Pause{Consumer: hopbench.ConsumerName, For: holdFor, By: "bench"}
	if _, err := pause.Apply(ctx, s.Bus); err != nil {
		return err
	}
	<-time.After(heldAfter)
	if err := s.Publish(ctx, warmUp, b.held); err != nil {
		return err
	}
	d.down.Store(r.outage > 0)
	if _, err := consumer.Resume(ctx, s.Bus, hopbench.ConsumerName); err != nil {
		return err
	}
	begun := time.Now()
	if r.outage > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.outage):
		}
		d.down.Store(false)
		begun, r.calls = time.Now(), d.calls.Load()
	}
	sum, err := fleet.ended(ctx, uint64(warmUp+b.held)) //nolint:gosec // positive
	if err != nil {
		return err
	}
	r.drain, r.parked = time.Since(begun), sum.Parked
	if !r.shared {
		return nil
	}
	if r.outage > 0 {
		if sum.Opened == 0 || sum.Idle == 0 {
			return fmt.Errorf("%w: the breaker did not open", errExpected)
		}
		r.idle = time.Duration(sum.Idle - sum.Opened)
	}
	return s.Verify(ctx, warmUp+b.held)
}

// callers are the processes of one consumer, and what each has told last.
type callers struct {
	children []*worker
	reading  sync.WaitGroup

	mu   sync.Mutex
	last []called
}

func (c *callers) follow(i int, child *worker) {
	c.children = append(c.children, child)
	c.reading.Go(func() {
		for child.lines.Scan() {
			var now called
			if json.Unmarshal(child.lines.Bytes(), &now) == nil {
				c.mu.Lock()
				c.last[i] = now
				c.mu.Unlock()
			}
		}
	})
}

// sum is what all have told together: the first opening, and when the last one was idle.
func (c *callers) sum() (sum called) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.last {
		sum.Handled, sum.Parked = sum.Handled+l.Handled, sum.Parked+l.Parked
		if l.Opened > 0 && (sum.Opened == 0 || l.Opened < sum.Opened) {
			sum.Opened = l.Opened
		}
	}
	sum.Idle = slices.MaxFunc(c.last, func(x, y called) int { return int(x.Idle - y.Idle) }).Idle
	if slices.ContainsFunc(c.last, func(l called) bool { return l.Idle == 0 }) {
		sum.Idle = 0
	}
	return sum
}

// ended waits until so many events have come to an end.
func (c *callers) ended(ctx context.Context, n uint64) (called, error) {
	for begun := time.Now(); ; {
		sum := c.sum()
		switch {
		case sum.Handled+sum.Parked >= n:
			return sum, nil
		case time.Since(begun) > 5*time.Minute:
			return sum, fmt.Errorf("%w: %d handled, %d parked, want %d", hopbench.ErrStalled, sum.Handled, sum.Parked, n)
		}
		select {
		case <-ctx.Done():
			return sum, ctx.Err()
		case <-time.After(progressEvery):
		}
	}
}

// end stops the processes and waits for them.
func (c *callers) end() error {
	var errs []error
	for _, child := range c.children {
		errs = append(errs, child.process.Process.Signal(syscall.SIGTERM))
	}
	c.reading.Wait()
	for _, child := range c.children {
		errs = append(errs, child.process.Wait())
	}
	return errors.Join(errs...)
}
