package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
)

// batches is how many full batches are in flight at most.
const batches = 4

// Relay publishes the committed rows of an outbox and marks them. Any number of
// relays, in any processes, share an outbox.
//
// It claims a batch of rows for a lease, publishes them with their message ids,
// the rows of one key one after another, and marks what a stream has
// acknowledged. A row that is refused is tried again, and parked as DEAD_LETTER
// after [RelayConfig.MaxAttempts]; what follows it in its key waits until then.
// Outages are what is known to be one: while the server is not there, does not
// answer anybody, has no event stream, or denies it to this user, rows stay PENDING.
// All else is the row's fault.
type Relay struct {
	outbox *Outbox
	bus    *bus.Bus
	cfg    RelayConfig
	log    zerolog.Logger
	sender sender

	host    string
	health  health
	metrics *relayMetrics

	inFlight atomic.Int64  // rows claimed and not settled
	freed    chan struct{} // signalled when rows are settled
	pace     pace
	barren   atomic.Int64 // batches in a row of which nothing could be published, for no fault of theirs

	tail *tail // nil without a feed
}

// NewRelay does no I/O. The bus and the outbox's database remain the caller's.
// The error matches [ErrConfig].
func NewRelay(o *Outbox, b *bus.Bus, cfg RelayConfig) (*Relay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Feed != nil && o.cfg.Dialect != Postgres {
		return nil, fmt.Errorf("%w: Feed: the outbox is not in Postgres", ErrConfig)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	r := &Relay{
		outbox: o,
		bus:    b,
		cfg:    cfg,
		log:    cfg.Logger,
		sender: sender{b, cfg.Types, &judge{bus: b}},
		host:   host,
		freed:  make(chan struct{}, 1),
	}
	if cfg.Feed != nil {
		r.tail = newTail(r)
	}
	if r.metrics, err = newRelayMetrics(r, cfg.Metrics); err != nil {
		return nil, err
	}
	return r, nil
}

// Run publishes until ctx ends. Then it waits for the acknowledgements of what
// is sent, marks it, gives back the rest, and returns nil. Outages of the
// database and of NATS are not errors: [Relay.Health] tells of them, and Run
// resumes by itself.
func (r *Relay) Run(ctx context.Context) error {
	var work sync.WaitGroup
	if r.cfg.Watch != nil {
		work.Go(func() { r.watch(ctx) })
	}
	if r.cfg.Metrics != nil {
		work.Go(func() { r.sample(ctx) })
	}
	if r.tail != nil {
		work.Go(func() { r.tail.run(ctx) })
	}
	work.Go(func() { r.clean(ctx) })
	r.relay(ctx)
	work.Wait()
	return nil
}

// watch has the database tell of commits.
func (r *Relay) watch(ctx context.Context) {
	for {
		err := r.cfg.Watch(ctx, r.outbox.Wake)
		if ctx.Err() != nil {
			return
		}
		r.log.Warn().Err(err).Msg("outbox relay: nobody tells of commits, polling")
		if !pause(ctx, r.cfg.Poll+rand.N(r.cfg.Poll)) { //nolint:gosec // jitter
			return
		}
	}
}

// relay claims batches and has them delivered.
func (r *Relay) relay(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	for idle := minPoll; ctx.Err() == nil; {
		begin := time.Now()
		if b, more := r.next(ctx); len(b.rows) > 0 {
			work.Go(func() { r.deliver(ctx, b) })
			idle = minPoll
			if more || !pause(ctx, breath-time.Since(begin)) {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-r.woken():
			idle = minPoll
		case <-r.freed:
			idle = minPoll
		case <-time.After(idle):
			idle = min(2*idle, r.cfg.Poll)
		}
	}
}

// breath is between the beginnings of two claims that find little: a claim and
// a mark cost two commits, however many rows they are for.
const breath = 10 * time.Millisecond

// woken is told of commits that are a reason to claim.
func (r *Relay) woken() <-chan struct{} {
	if r.tail != nil && r.tail.quiet() {
		return nil
	}
	return r.outbox.wake
}

// look has the relay claim without waiting for its time.
func (r *Relay) look() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// full says that enough is in flight.
func (r *Relay) full() bool { return r.inFlight.Load() > int64((batches-1)*r.cfg.Batch) }

// next claims a batch, an empty one if there is nothing to claim, nobody to
// publish to, or enough in flight. more says that there may be another one at once.
func (r *Relay) next(ctx context.Context) (b batch, more bool) {
	if r.bus.Health() != nil || r.full() {
		return batch{}, false
	}
	// Without a stream each claim is wasted, and there may be very many rows.
	if n := r.barren.Load(); n > 0 && !pause(ctx, min(time.Duration(n)*time.Second/10, time.Second)) {
		return batch{}, false
	}
	begin := time.Now()
	r.health.claim(begin)
	var err error
	if r.tail != nil {
		b, more, err = r.tail.claim(ctx)
	} else {
		b, more, err = r.claim(ctx, 0)
	}
	r.health.claim(time.Time{})
	switch {
	case err == nil:
		r.health.clear(partClaim)
	case ctx.Err() == nil:
		r.trouble(partClaim, err)
		r.pace.adapt(time.Since(begin), r.cfg.Lease, r.cfg.Batch)
		pause(ctx, r.cfg.Poll/2+rand.N(r.cfg.Poll)) //nolint:gosec // jitter
	}
	r.inFlight.Add(int64(len(b.rows)))
	return b, more
}

// deliver publishes a batch and settles its rows as their results come.
func (r *Relay) deliver(ctx context.Context, b batch) {
	var work sync.WaitGroup
	defer work.Wait()
	r.await(ctx, b, r.start(ctx, b, &work), len(b.rows))
	took := time.Since(b.claimed)
	r.pace.adapt(took, r.cfg.Lease, r.cfg.Batch)
	r.metrics.duration.Observe(took.Seconds())
}

// start has the rows of a batch sent, and returns where their results come.
func (r *Relay) start(ctx context.Context, b batch, work *sync.WaitGroup) <-chan result {
	results := make(chan result, len(b.rows)) // nobody ever blocks on it
	work.Go(func() {
		sending, stop := context.WithDeadline(ctx, b.claimed.Add(r.cfg.Lease/2))
		defer stop()
		waiting, cancel := context.WithDeadline(context.WithoutCancel(ctx), b.claimed.Add(r.cfg.Lease*3/4))
		defer cancel()
		r.sender.send(sending, waiting, b.rows, func(res result) { results <- res })
	})
	return results
}

// await settles rows of a batch as their results come.
func (r *Relay) await(ctx context.Context, b batch, results <-chan result, left int) {
	var published, failed bool
	for left > 0 {
		ready := gather(results, left)
		left -= len(ready)
		for _, res := range ready {
			published = published || res.err == nil || classOf(res.err) != ""
			failed = failed || res.err != nil
		}
		r.settle(ctx, b, ready)
		r.inFlight.Add(-int64(len(ready)))
		r.look()
	}
	switch {
	case published:
		r.barren.Store(0)
	case failed:
		r.barren.Add(1)
	}
}

// togetherness is how long rows that have their result wait for others of their
// batch, so that one statement marks them all.
const togetherness = 50 * time.Millisecond

// gather waits for a result and takes what else comes soon, at most n.
func gather(results <-chan result, n int) []result {
	ready := append(make([]result, 0, n), <-results)
	enough := time.NewTimer(togetherness)
	defer enough.Stop()
	for len(ready) < n {
		select {
		case res := <-results:
			ready = append(ready, res)
		case <-enough.C:
			return ready
		}
	}
	return ready
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
