package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/health"
	"github.com/farandole/farandole/internal/pauses"
)

// Consumer runs a registry's handlers on the events of a stream.
type Consumer struct {
	bus      *bus.Bus
	registry *Registry
	cfg      Config
	ledger   dedup.Ledger
	log      zerolog.Logger
	host     string

	feeds      []*feed
	lanes      *lanes
	inFlight   *inFlight
	slots      *slots
	valve      *valve
	pauses     *pauses.Store
	shifts     *shifts
	suspects   *suspects
	contention contention
	health     *health.Troubles
	doubts     *doubts
	metrics    *metrics
	unhandled  *unhandled
	// schedules is the stream of timers and deferred retries.
	schedules *schedules
	// now is the server's clock: a wrong clock of this process neither hurries
	// retries nor lets events expire.
	now func(context.Context) (time.Time, error)

	started atomic.Bool
	begun   atomic.Bool   // it is known what it is given: what is stored from now on is handled
	stopped chan struct{} // closed when nothing new may start
	ended   atomic.Pointer[error]
	running sync.WaitGroup // one for each worker
	// For a ledger with partitions.
	resuming  sync.WaitGroup // what has waited in this process and is admitted again
	abandoned chan struct{}  // closed when handlers ignore their cancellation
	durables  atomic.Uint64  // how many were made
	idle      chan *delivery // to the workers that wait
	idlers    atomic.Int64   // how many of them
}

// New checks configuration and registrations and joins all problems in one
// error matching [ErrConfig]. It does no I/O and starts nothing.
func New(b *bus.Bus, r *Registry, cfg Config) (*Consumer, error) {
	cfg = cfg.withDefaults()
	byType := cfg.Ledger != nil && cfg.Ledger.Partitions() != nil
	if err := errors.Join(missing(cfg.Name, b, r), cfg.validate(), r.validate(cfg.From != nil, byType)); err != nil {
		return nil, err
	}
	cfg.Logger = b.LoggerOr(cfg.Logger)
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
		lanes: newLanes(max(1, cfg.InFlight/cfg.Concurrency)), inFlight: newInFlight(), slots: newSlots(cfg.Concurrency),
		shifts:   &shifts{timeout: cfg.HandlerTimeout},
		suspects: newSuspects(), stopped: stopped, abandoned: make(chan struct{}), idle: make(chan *delivery),
		health:    health.New(max(2*cfg.Lease, minFade)),
		doubts:    &doubts{fade: max(2*cfg.Lease, minFade) + cfg.Retry.MaxDelay},
		schedules: &schedules{bus: b, timers: b.Names().TimersStream(), events: b.Names().EventsStream()},
		now:       b.Clock(b.Names().EventsStream()).Now,
		unhandled: newUnhandled(cfg),
	}
	c.valve, c.pauses = newValve(c.slots), pauses.New(b)
	c.feeds = c.newFeeds()
	var err error
	if c.metrics, err = newMetrics(c, cfg.Metrics); err != nil {
		return nil, err
	}
	return c, nil
}

// missing says what a consumer cannot be made without.
func missing(name event.Consumer, b *bus.Bus, r *Registry) error {
	var errs []error
	if b == nil {
		errs = append(errs, fmt.Errorf("%w: %s: the bus is nil: connect it first (bus.Connect), and check its error", ErrConfig, name))
	}
	if r == nil {
		errs = append(errs, fmt.Errorf("%w: %s: the registry is nil: make it with NewRegistry, and register handlers with Handle", ErrConfig, name))
	}
	return errors.Join(errs...)
}

// Run consumes until ctx ends, then stops in this order: no more pulls; what
// waits is given back, its attempt unspent; running handlers get the grace
// period, are then cancelled and given back likewise; the connection is
// flushed, if there is one; the ledger, which runs beside all this
// ([dedup.Ledger].Run), is stopped. It returns nil after a clean stop, also during an
// outage. It returns an error matching [ErrConfig] at once when stream or ledger
// cannot keep what the configuration promises, [bus.ErrNoStream] when the stream
// does not exist, [bus.ErrDenied] with the grant that is missing,
// [bus.ErrUnavailable] when nothing has a leader for as long as the bus waits, and
// [ErrAbandoned] when handlers ignored their cancellation. Outages after the start
// are not errors: Run reports them by [Consumer.Health] and resumes by itself. Errors
// of the ledger's Run end it, too. It can be called once.
func (c *Consumer) Run(ctx context.Context) (err error) {
	if c.started.Swap(true) {
		return fmt.Errorf("%w: Run called twice", ErrConfig)
	}
	defer func() { c.ended.Store(&err) }()
	ctx, stop := context.WithCancel(ctx)
	beside, stopLedger := context.WithCancel(context.WithoutCancel(ctx))
	ledger := make(chan error, 1)
	go func() {
		defer stop() // nothing can be handled without the ledger
		ledger <- c.ledger.Run(beside)
	}()
	defer func() { // after the handlers, which may still commit
		stop()
		stopLedger()
		err = errors.Join(err, <-ledger)
	}()
	work, cancelWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelWork(nil)
	own := c.newShare(work)
	if err := c.begin(ctx, own); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began
		}
		return err
	}

	beats, stopBeats := context.WithCancel(context.WithoutCancel(ctx))
	var heart sync.WaitGroup
	heart.Go(func() { c.heartbeat(beats) })
	defer heart.Wait()
	defer stopBeats()

	var pullers sync.WaitGroup
	if own != nil {
		own.join(ctx)
		pullers.Go(func() { own.run(ctx) })
		defer own.leave()
	}
	c.begun.Store(true)
	c.logReady(own)
	for _, f := range c.feeds {
		pullers.Go(func() { c.pull(ctx, work, f) })
		pullers.Go(func() { c.tend(ctx, work, f) })
	}
	pullers.Go(func() { c.heed(ctx) })
	pullers.Go(func() { c.tendPauses(ctx) })
	<-ctx.Done()
	close(c.stopped)
	c.slots.stop()
	for _, d := range c.lanes.empty() {
		c.finish(d, c.giveBack(d, released, 0))
	}
	pullers.Wait()
	if own != nil {
		own.close(ctx)
		c.resuming.Wait()
	}
	if err = c.drain(cancelWork); err != nil {
		close(c.abandoned)
	}
	return err
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
		return fmt.Errorf("%w: %s: %d events", ErrAbandoned, c.cfg.Name, c.inFlight.size())
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

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
