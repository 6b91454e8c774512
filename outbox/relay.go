package outbox

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/health"
)

// maxBatches is how many full batches are in flight at most.
const maxBatches = 4

// Relay publishes the committed rows of an outbox and marks them. Any number of
// relays, in any processes, share an outbox.
//
// A relay claims a batch of rows for a lease, publishes them with their message ids,
// the rows of one key one after another, and marks what a stream has acknowledged.
//
// During an outage rows stay PENDING: while the server is not there, does not answer
// anybody, has no event stream, or denies it to this user. Every other failure is the
// row's fault. Such a row is tried again, and parked as DEAD_LETTER after
// [RelayConfig.MaxAttempts] failures; the later rows of its key wait until then.
type Relay struct {
	outbox *Outbox
	bus    *bus.Bus
	cfg    RelayConfig
	log    zerolog.Logger
	sender sender

	host    string
	health  *health.Troubles
	metrics *relayMetrics

	claiming atomic.Pointer[time.Time] // when the claim under way began; nil for none
	inFlight atomic.Int64              // rows claimed and not settled
	soon     chan struct{}             // signalled when the next claim should not wait for its time
	pace     pace
	outages  atomic.Int64 // how many of the latest batches, one after another, met nothing but an outage

	feed *feedRelay // nil without a feed
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
	cfg.Logger = b.LoggerOr(cfg.Logger)
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
		health: health.New(forgetAfter),
		soon:   make(chan struct{}, 1),
	}
	if cfg.Feed != nil {
		r.feed = newFeedRelay(r)
	}
	if r.metrics, err = newRelayMetrics(r, cfg.Metrics); err != nil {
		return nil, err
	}
	return r, nil
}

// Run publishes until ctx ends. Then it waits for the acknowledgements of what was
// sent, marks those rows, gives back the others, and returns nil. An outage of the
// database or of NATS is no error: [Relay.Health] tells of it, and Run resumes by itself.
func (r *Relay) Run(ctx context.Context) error {
	var work sync.WaitGroup
	if w, ok := r.outbox.db.Driver().(Watcher); ok {
		work.Go(func() { r.watch(ctx, w) })
	}
	if r.cfg.Metrics != nil {
		work.Go(func() { r.sample(ctx) })
	}
	if r.feed != nil {
		work.Go(func() { r.feed.run(ctx) })
	}
	work.Go(func() { r.clean(ctx) })
	r.claimAndDeliver(ctx)
	work.Wait()
	return nil
}

// watch lets the database wake the relay after commits.
func (r *Relay) watch(ctx context.Context, w Watcher) {
	for {
		err := w.Watch(ctx, r.outbox.db, r.outbox.Wake)
		if ctx.Err() != nil {
			return
		}
		r.log.Warn().Err(err).Msg("outbox relay: nobody tells of commits, polling")
		if !backoff.Wait(ctx, backoff.Around(r.cfg.Poll)) {
			return
		}
	}
}

// claimAndDeliver claims batch after batch and delivers each beside the next claims.
func (r *Relay) claimAndDeliver(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	for idle := minPoll; ctx.Err() == nil; {
		begin := time.Now()
		if b, more := r.next(ctx); len(b.rows) > 0 {
			work.Go(func() { r.deliver(ctx, b) })
			idle = minPoll
			if more || !backoff.Wait(ctx, minClaimPause-time.Since(begin)) {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-r.woken():
			idle = minPoll
		case <-r.soon:
			idle = minPoll
		case <-time.After(idle):
			idle = min(2*idle, r.cfg.Poll)
		}
	}
}

// minClaimPause is the least time from the beginning of a claim that found less than
// it could take to the beginning of the next one. A claim and a mark cost two commits,
// however many rows they are for.
const minClaimPause = 10 * time.Millisecond

// woken is signalled after commits that are a reason to claim.
func (r *Relay) woken() <-chan struct{} {
	if r.feed != nil && r.feed.tellsOfCommits() {
		return nil
	}
	return r.outbox.wake
}

// claimSoon lets the next claim begin without waiting for its time.
func (r *Relay) claimSoon() {
	select {
	case r.soon <- struct{}{}:
	default:
	}
}

// full reports whether enough rows are in flight.
func (r *Relay) full() bool { return r.inFlight.Load() > int64((maxBatches-1)*r.cfg.Batch) }

// next claims a batch. It is empty if there is nothing to claim, nobody to publish
// to, or enough in flight. more says that another claim may find rows at once.
func (r *Relay) next(ctx context.Context) (b batch, more bool) {
	if r.bus.Health() != nil || r.full() {
		return batch{}, false
	}
	// While there is no stream each claim is wasted, and there may be very many rows.
	if n := r.outages.Load(); n > 0 && !backoff.Wait(ctx, min(time.Duration(n)*time.Second/10, time.Second)) {
		return batch{}, false
	}
	begin := time.Now()
	r.claiming.Store(&begin)
	var err error
	if r.feed != nil {
		b, more, err = r.feed.claim(ctx)
	} else {
		b, more, err = r.claim(ctx, 0)
	}
	r.claiming.Store(nil)
	switch {
	case err == nil:
		r.health.Clear(partClaim)
	case ctx.Err() == nil:
		r.trouble(partClaim, err)
		r.pace.adapt(time.Since(begin), r.cfg.Lease, r.cfg.Batch)
		backoff.Wait(ctx, backoff.Around(r.cfg.Poll))
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

// start sends the rows of a batch and returns the channel on which their results come.
func (r *Relay) start(ctx context.Context, b batch, work *sync.WaitGroup) <-chan result {
	results := make(chan result, len(b.rows)) // with room for all: sending a result never blocks
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
	var answered, failed bool
	for left > 0 {
		ready := gather(results, left)
		left -= len(ready)
		for _, res := range ready {
			answered = answered || res.err == nil || classOf(res.err) != ""
			failed = failed || res.err != nil
		}
		r.settle(ctx, b, ready)
		r.inFlight.Add(-int64(len(ready)))
		r.claimSoon()
	}
	switch {
	case answered:
		r.outages.Store(0)
	case failed:
		r.outages.Add(1)
	}
}

// gatherFor is how long rows that have their result wait for others of their batch,
// so that one statement marks them all.
const gatherFor = 50 * time.Millisecond

// gather waits for a result and takes the others that come soon, n in all at most.
func gather(results <-chan result, n int) []result {
	ready := append(make([]result, 0, n), <-results)
	enough := time.NewTimer(gatherFor)
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
