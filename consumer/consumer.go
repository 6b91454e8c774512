package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
)

// Consumer runs a registry's handlers on the events of a stream.
type Consumer struct {
	bus      *bus.Bus
	registry *Registry
	cfg      Config
	ledger   dedup.Ledger
	log      zerolog.Logger
	host     string

	lanes    *lanes
	flight   *flight
	slots    *slots
	suspects *suspects
	// unsettled are events whose state others keep changing.
	unsettled unsettled
	budget    *budget
	redrives  *budget // what comes back from the event stream, with From
	health    *health
	doubts    *doubts
	metrics   *metrics
	// durables are what is known of them, window the MaxAckPending that they have.
	durables  durables
	window    atomic.Int64
	unhandled *unhandled
	// schedules is the stream of timers and deferred retries.
	schedules *schedules
	// now is the server's clock: a wrong clock of this process neither hurries
	// retries nor lets events expire.
	now func(context.Context) (time.Time, error)

	started atomic.Bool
	stopped chan struct{} // closed when nothing new may start
	ended   atomic.Pointer[error]
	running sync.WaitGroup // one for each worker
	idle    chan *delivery // to the workers that wait
	idlers  atomic.Int64   // how many of them
}

// New checks configuration and registrations and joins all problems in one
// error matching [ErrConfig]. It does no I/O and starts nothing.
func New(b *bus.Bus, r *Registry, cfg Config) (*Consumer, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), r.validate(cfg.From != nil)); err != nil {
		return nil, err
	}
	ledger := cfg.Ledger
	if ledger == nil {
		kv, err := dedup.NewKV(b, dedup.Config{Logger: cfg.Logger})
		if err != nil {
			return nil, fmt.Errorf("consumer: %s: %w", cfg.Name, err)
		}
		ledger = kv
	}
	stopped := make(chan struct{})
	c := &Consumer{
		bus: b, registry: r, cfg: cfg, ledger: ledger,
		log:   cfg.Logger.With().Str(keyConsumer, string(cfg.Name)).Logger(),
		host:  hostname(),
		lanes: newLanes(max(1, cfg.InFlight/cfg.Concurrency)), flight: newFlight(), slots: newSlots(cfg.Concurrency, stopped),
		suspects: newSuspects(), stopped: stopped, idle: make(chan *delivery),
		budget: newBudget(cfg.InFlight - cfg.forRedrives()), redrives: newBudget(cfg.forRedrives()),
		health:    &health{fade: max(2*cfg.Lease, minFade)},
		doubts:    &doubts{fade: max(2*cfg.Lease, minFade) + cfg.Retry.MaxDelay},
		schedules: &schedules{bus: b, timers: b.Names().TimersStream(), events: b.Names().EventsStream()},
		now:       b.Clock(b.Names().EventsStream()).Now,
		unhandled: newUnhandled(cfg),
	}
	var err error
	if c.metrics, err = newMetrics(c, cfg.Metrics); err != nil {
		return nil, err
	}
	return c, nil
}

// Run consumes until ctx ends, then stops in this order: no more pulls; what
// waits is given back, its attempt unspent; running handlers get the grace
// period, are then cancelled and given back likewise; the connection is
// flushed, if there is one. It returns nil after a clean stop, also during an
// outage. It returns an error matching [ErrConfig] at once when stream or ledger
// cannot keep what the configuration promises, [bus.ErrNoStream] when the stream
// does not exist, [bus.ErrDenied] with the grant that is missing,
// [bus.ErrUnavailable] when nothing has a leader for as long as the bus waits, and
// [ErrAbandoned] when handlers ignored their cancellation. Outages after the start
// are not errors: Run reports them by [Consumer.Health] and resumes by itself. It
// can be called once.
func (c *Consumer) Run(ctx context.Context) (err error) {
	if c.started.Swap(true) {
		return fmt.Errorf("%w: Run called twice", ErrConfig)
	}
	defer func() { c.ended.Store(&err) }()
	if err := c.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began
		}
		return err
	}
	work, cancelWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelWork(nil)

	beats, stopBeats := context.WithCancel(context.WithoutCancel(ctx))
	var heart sync.WaitGroup
	heart.Go(func() { c.heartbeat(beats) })
	defer heart.Wait()
	defer stopBeats()

	var pullers sync.WaitGroup
	for _, s := range c.sources() {
		pullers.Go(func() { c.pull(ctx, work, s) })
		pullers.Go(func() { c.tend(ctx, work, s) })
	}
	<-ctx.Done()
	close(c.stopped)
	for _, d := range c.lanes.empty() {
		c.finish(d, c.giveBack(d, Released, 0))
	}
	pullers.Wait()
	return c.drain(cancelWork)
}

// begin prepares, and waits for what comes by itself: for leaders as long as the
// bus waits, and as long as need be for a connection that was lost meanwhile. The
// consumer is unhealthy until then. Any other error is a person's to mend.
func (c *Consumer) begin(ctx context.Context) error {
	const part = "start"
	c.health.set(part, errStarting)
	for {
		connected := c.bus.Conn().Stats().Reconnects
		var wrong error
		err := c.bus.Await(ctx, func(ctx context.Context) error {
			err := c.prepare(ctx)
			switch {
			case err == nil:
			case passes(err):
				c.health.set(part, fmt.Errorf("%w: %w", errStarting, err))
			default:
				wrong, err = err, nil
			}
			return err
		})
		if wrong != nil {
			return wrong
		}
		if err == nil {
			c.health.clear(part)
			return nil
		}
		lost := c.bus.Conn().IsReconnecting() || c.bus.Conn().Stats().Reconnects != connected
		if ctx.Err() != nil || !lost {
			return err
		}
		c.log.Warn().Err(err).Msg("connection lost while starting, will try again")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(bindRetry):
		}
	}
}

// drain waits for the running handlers, first patiently, then cancelling.
func (c *Consumer) drain(cancel context.CancelCauseFunc) error {
	idle := make(chan struct{})
	go func() {
		c.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		c.flush()
		return nil
	case <-time.After(c.cfg.Grace):
	}
	cancel(errShutdown)
	select {
	case <-idle:
		c.flush()
		return nil
	case <-time.After(cancelGrace):
		return fmt.Errorf("%w: %s: %d events", ErrAbandoned, c.cfg.Name, c.flight.size())
	}
}

// flush waits until the server has the last acknowledgements. If it is away they
// are lost, and the ledger recognises what is delivered again.
func (c *Consumer) flush() {
	if !c.bus.Conn().IsConnected() {
		return
	}
	if err := c.bus.Conn().FlushTimeout(flushTimeout); err != nil {
		c.log.Warn().Err(err).Msg("acknowledgements may be lost, the redeliveries will be acknowledged")
	}
}

const (
	// cancelGrace is how long a cancelled handler has to return before Run
	// gives up waiting for it.
	cancelGrace = 5 * time.Second
	// flushTimeout is how long the server has to take the last acknowledgements.
	flushTimeout = 5 * time.Second
)

// Health returns nil while the consumer makes progress, else an error matching
// [ErrUnhealthy] that joins what is wrong. It turns nil again by itself.
func (c *Consumer) Health() error {
	if err := c.bus.Health(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnhealthy, err)
	}
	if err := c.ended.Load(); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrUnhealthy, errEnded), *err)
	}
	now := time.Now()
	errs := []error{c.health.err(now), c.flight.err(), c.unhandled.err(now)}
	if ledger, ok := c.ledger.(interface{ Health() error }); ok {
		if err := ledger.Health(); err != nil {
			errs = append(errs, fmt.Errorf("%w: ledger: %w", ErrUnhealthy, err))
		}
	}
	return errors.Join(errs...)
}

// dispatch takes a message from the server into its lane.
func (c *Consumer) dispatch(work context.Context, m *nats.Msg, s source) {
	d, err := newDelivery(c, m, s)
	if err != nil {
		s.budget.release(1)
		c.log.Error().Err(err).Msg("delivery without metadata ignored")
		return
	}
	c.flight.add(d)
	select {
	case <-c.stopped:
		c.finish(d, c.giveBack(d, Released, 0))
		return
	default:
	}
	run, back := c.lanes.enter(d, time.Now())
	switch {
	case run:
		c.start(work, d)
	case back > 0:
		c.finish(d, c.giveBack(d, Released, back))
	}
}

// start has a worker run d's lane: one that waits for work, with a stack that
// has grown to what the journey needs, else a new one.
func (c *Consumer) start(work context.Context, d *delivery) {
	select {
	case c.idle <- d:
	default:
		c.running.Go(func() { c.worker(work, d) })
	}
}

// worker runs lanes until the consumer stops, or until enough others wait.
func (c *Consumer) worker(work context.Context, d *delivery) {
	for {
		c.runLane(work, d)
		if c.idlers.Add(1) > int64(c.cfg.Concurrency) {
			c.idlers.Add(-1)
			return
		}
		select {
		case d = <-c.idle:
			c.idlers.Add(-1)
		case <-c.stopped:
			return
		}
	}
}

// runLane processes d and what is queued behind it, one after another.
func (c *Consumer) runLane(work context.Context, d *delivery) {
	for d != nil {
		d = c.over(d, c.process(work, d))
	}
}

// over ends d's run and returns what of its key runs next, nil if nothing does.
func (c *Consumer) over(d *delivery, f fate) (next *delivery) {
	c.suspects.leave(d)
	c.finish(d, f)
	next, back := c.lanes.leave(d, f.again, time.Now())
	for _, h := range back {
		c.finish(h.delivery, c.giveBack(h.delivery, Released, h.delay))
	}
	return next
}

// finish ends this process's hold on a delivery.
func (c *Consumer) finish(d *delivery, f fate) {
	c.quieten(d, f)
	c.flight.remove(d)
	d.leavePlace()
	c.metrics.count(f.outcome)
}

// watchRetries turns the consumer unhealthy while deliveries that wait for
// their retry use up what the server allows to be unacknowledged.
func (c *Consumer) watchRetries() {
	window := c.window.Load()
	if n, strays := c.lanes.waits(), c.unhandled.size(); int64(n+strays) >= window && window > 0 {
		waits := fmt.Sprintf("%d events wait for their retry", n)
		if strays > 0 {
			waits += fmt.Sprintf(" and %d for a handler of their type", strays)
		}
		c.health.set("retries", fmt.Errorf("%w: %s, MaxAckPending is %d: nothing else is delivered until one is due", errClogged, waits, window))
		return
	}
	c.health.clear("retries")
}
