package fleet

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/resilience"
)

// Run keeps the consumer of this process to what the processes agree on, until ctx
// ends. Call it once, beside c.Run: from its first line on c begins nothing before it is
// known what is shared. It waits for all that it has started.
func (f *Breaker) Run(ctx context.Context, c *consumer.Consumer) {
	ctx, cancel := context.WithCancel(ctx)
	c.Hold(f.reason(), consumer.Hold{})
	defer c.Release(f.reason())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { f.follow(ctx) })
	r := &runner{Breaker: f, consumer: c}
	for ctx.Err() == nil {
		again := time.NewTimer(r.step(ctx))
		select {
		case <-ctx.Done():
		case <-f.turned:
		case <-again.C:
		}
		again.Stop()
	}
}

// runner is what Run remembers. It belongs to one goroutine.
type runner struct {
	*Breaker
	consumer *consumer.Consumer
	entered  pauses.State // the state of the last step
	ramp     time.Time    // when the breaker has closed; zero if nothing is bounded
	renewed  time.Time    // the lease as the prober
	busy     time.Time    // when the prober had an event last
}

// idleStep is when a step is looked at again in which nothing is due.
const idleStep = 10 * time.Second

// step does what is due, and returns when to look again.
func (r *runner) step(ctx context.Context) time.Duration {
	r.mu.Lock()
	known, shared, left, timed := r.known, r.shared, time.Until(r.until), r.timed
	tripped, recovered, prober := r.tripped, r.recovered, r.probes()
	r.mu.Unlock()
	if !known {
		return idleStep
	}
	if r.overdue() && r.shareOwn(ctx) != nil {
		return shareAgain
	}
	if tripped != nil {
		return r.open(ctx, *tripped)
	}
	if shared.State == "" {
		return r.register(ctx)
	}
	forever := shared.Forced && shared.State == pauses.Open && shared.Until.IsZero()
	if shared.State != pauses.Closed && !timed && !forever {
		r.hold(consumer.Hold{}) // at once, and only then asked for how long
		r.measure(ctx)
		return shareAgain
	}
	r.enter(shared.State, left)
	switch {
	case shared.State == pauses.Closed:
		return r.rampUp()
	case prober:
		return r.prove(ctx, shared, recovered)
	case forever:
		r.hold(consumer.Hold{})
		return idleStep
	case left > 0 && shared.State == pauses.Open && !shared.Forced:
		r.hold(consumer.Hold{PauseUntil: shared.Until})
		return left
	case left > 0:
		// The prober's events are to be delivered. And an operator may close the breaker when
		// no process is left that would have the server resume.
		r.hold(consumer.Hold{})
		return left
	}
	return r.stand(ctx, shared)
}

func (r *runner) hold(h consumer.Hold) { r.consumer.Hold(r.reason(), h) }

// enter has the own breaker follow a state that was not its own.
func (r *runner) enter(s pauses.State, left time.Duration) {
	if s == r.entered {
		return
	}
	before := r.entered
	r.entered = s
	switch own := r.local.State(); {
	case s == pauses.Closed:
		if own != resilience.Closed {
			r.local.Close()
		}
		if before != "" {
			r.ramp = time.Now()
		}
	case own != resilience.Open && !r.proves():
		r.local.Open(max(left, time.Millisecond))
	}
}

// proves says that this process is the prober.
func (r *runner) proves() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.probes()
}

// register tells people of the breaker before it opens for the first time.
func (r *runner) register(ctx context.Context) time.Duration {
	err := r.share(ctx, func(b *pauses.Breaker, now time.Time) bool {
		if b.State != "" {
			return false
		}
		*b = pauses.Breaker{State: pauses.Closed, At: now.UTC(), By: r.id}
		return true
	})
	if err != nil {
		r.consumer.Release(r.reason())
		return shareAgain
	}
	return 0
}

// open shares that the own breaker has opened. If another process has been faster, that counts.
func (r *runner) open(ctx context.Context, t resilience.Transition) time.Duration {
	r.hold(consumer.Hold{})
	err := r.share(ctx, func(b *pauses.Breaker, now time.Time) bool {
		if b.State == pauses.Open || b.State == pauses.HalfOpen && b.Prober != r.id {
			return false
		}
		if b.State != pauses.HalfOpen {
			b.Opened++
		}
		why := string(t.Event)
		if t.Err != nil {
			why += ": " + t.Err.Error()
		}
		*b = pauses.Breaker{
			State: pauses.Open, Until: now.Add(t.OpenFor).UTC(), Opened: b.Opened, Term: b.Term, At: now.UTC(), By: r.id, Why: cut(why),
		}
		return true
	})
	if err != nil {
		return shareAgain
	}
	r.mu.Lock()
	r.tripped, r.recovered = nil, false
	r.mu.Unlock()
	return 0
}

// stand has this process probe if no other one does, and it has an event to probe with.
func (r *runner) stand(ctx context.Context, shared pauses.Breaker) time.Duration {
	r.hold(consumer.Hold{Fetch: 1})
	if r.consumer.Waiting() == 0 {
		return lookEvery
	}
	err := r.share(ctx, func(b *pauses.Breaker, now time.Time) bool {
		if b.Term != shared.Term {
			return false
		}
		b.State, b.Until, b.Prober, b.At, b.By, b.Forced = pauses.HalfOpen, now.Add(lease).UTC(), r.id, now.UTC(), r.id, false
		return true
	})
	if err != nil {
		return shareAgain
	}
	if r.proves() {
		r.mu.Lock()
		r.recovered = false // of an earlier time that another process, or an operator, has ended
		r.mu.Unlock()
		now := time.Now()
		r.renewed, r.busy = now, now
		if r.local.Stats().StaysOpen > 0 {
			r.local.Open(time.Nanosecond) // the time that counts is over
		}
	}
	return 0
}

// prove lets probes begin, and shares what comes of them.
func (r *runner) prove(ctx context.Context, shared pauses.Breaker, recovered bool) time.Duration {
	stats, now := r.local.Stats(), time.Now()
	proved := shared.Proved + stats.HalfOpenSuccesses
	switch {
	case recovered, proved >= r.local.Probes():
		return r.close(ctx)
	case r.consumer.Stats().InFlight > 0:
		r.busy = now
	case now.Sub(r.busy) > idleProber:
		return r.yield(ctx, proved)
	}
	r.hold(consumer.Hold{Handlers: r.local.Probes() - shared.Proved})
	if now.Sub(r.renewed) >= renewEvery {
		r.renewed = now
		if r.mine(ctx, func(b *pauses.Breaker, now time.Time) { b.Until = now.Add(lease).UTC() }) != nil {
			return shareAgain
		}
	}
	return lookEvery
}

// mine changes what is shared while this process is the prober.
func (r *runner) mine(ctx context.Context, change func(b *pauses.Breaker, now time.Time)) error {
	return r.share(ctx, func(b *pauses.Breaker, now time.Time) bool {
		if b.State != pauses.HalfOpen || b.Prober != r.id {
			return false
		}
		change(b, now)
		return true
	})
}

// close shares that all probes have succeeded.
func (r *runner) close(ctx context.Context) time.Duration {
	err := r.mine(ctx, func(b *pauses.Breaker, now time.Time) {
		*b = pauses.Breaker{State: pauses.Closed, Opened: b.Opened, Term: b.Term, At: now.UTC(), By: r.id, Why: "all probes have succeeded"}
	})
	if err != nil {
		return shareAgain
	}
	r.mu.Lock()
	r.recovered = false
	r.mu.Unlock()
	return 0
}

// yield lets another process probe: this one has run out of events.
func (r *runner) yield(ctx context.Context, proved int) time.Duration {
	err := r.mine(ctx, func(b *pauses.Breaker, now time.Time) {
		b.State, b.Until, b.Prober, b.Proved, b.At, b.By = pauses.Open, now.UTC(), "", proved, now.UTC(), r.id
		b.Why = "no event to probe with"
	})
	if err != nil {
		return shareAgain
	}
	return 0
}

// rampUp lets more and more handlers run at once after the breaker has closed.
func (r *runner) rampUp() time.Duration {
	step := r.cfg.Ramp / rampSteps
	n := rampSteps
	if !r.ramp.IsZero() && step > 0 {
		n = int(time.Since(r.ramp) / step)
	}
	if n >= rampSteps {
		r.ramp = time.Time{}
		r.consumer.Release(r.reason())
		return idleStep
	}
	r.hold(consumer.Hold{Handlers: r.local.Probes() << n})
	return step - time.Since(r.ramp)%step
}

// maxWhy is how many bytes of a cause are shared.
const maxWhy = 200

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxWhy)], "") }
