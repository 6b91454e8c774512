package resilience

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Breaker stops calls to a dependency that fails. Make it with [NewBreaker]. It is
// safe for concurrent use, and one breaker may serve all callers of a dependency.
//
// Closed it lets all calls through, and opens when too many fail. Open it lets none
// through until its time is over; the next call makes it half-open. Half-open it
// lets Probes calls through, and closes when all of them have succeeded, or opens
// for the full time when one has failed.
type Breaker struct {
	cfg BreakerConfig
	// epoch is when the breaker was made. All its times are durations since then,
	// measured by the monotonic clock.
	epoch time.Time

	mu    sync.Mutex
	state State
	// generation counts what outdates permits: transitions and forced changes.
	generation uint64
	until      time.Duration // when an open breaker's time is over
	window     window
	proved     int                    // successes of probes
	probes     map[uint64]*time.Timer // time limits of the probes under way
	probe      uint64                 // the last probe's number
	stats      BreakerStats

	governor  func() time.Duration // nil for none
	listeners []func(Transition)
	untold    []Transition
	telling   bool // somebody is telling the listeners
}

// BreakerStats is what a breaker has counted since [NewBreaker].
type BreakerStats struct {
	State State
	// StaysOpen is how long the breaker is still open; 0 in other states.
	StaysOpen time.Duration
	// Running is how many permits have not been reported yet.
	Running int
	// ConsecutiveFailures are those since the last success.
	ConsecutiveFailures int
	// HalfOpenSuccesses are those of the probes of this time.
	HalfOpenSuccesses int
	// Successes, Failures and Neutral are the outcomes reported in time; Late are
	// reports that came after a change of state and did not count. Slow are the
	// failures that would be successes but for SlowAfter.
	Successes, Failures, Neutral, Late, Slow uint64
	// Rejected are calls that were not let through.
	Rejected uint64
	// Opened is how often the breaker opened.
	Opened uint64
}

// NewBreaker returns a closed breaker. The error matches [ErrConfig].
func NewBreaker(cfg BreakerConfig) (*Breaker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Breaker{cfg: cfg, epoch: time.Now(), window: newWindow(cfg), probes: map[uint64]*time.Timer{}}
	if cfg.Metrics != nil {
		if err := b.register(cfg.Metrics); err != nil {
			return nil, fmt.Errorf("%w: breaker %s: metrics: %w", ErrConfig, cfg.Name, err)
		}
	}
	return b, nil
}

// Name returns the breaker's name.
func (b *Breaker) Name() string { return b.cfg.Name }

// Probes is how many calls a half-open breaker lets through.
func (b *Breaker) Probes() int { return b.cfg.Probes }

// Permit lets one call through. Report the end of the call with [Permit.Done] on
// every path, also when it panics. Do not copy it.
type Permit struct {
	_          noCopy
	breaker    *Breaker
	generation uint64
	probe      uint64 // number of the probe, 0 if none
	start      time.Duration
	done       bool // guarded by breaker.mu
}

// noCopy makes go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Allow lets a call through, or returns an [*OpenError] at once. It never waits.
func (b *Breaker) Allow() (Permit, error) {
	b.mu.Lock()
	defer b.unlock()
	now := b.now()
	if b.state == Open && now >= b.until && b.governed() <= 0 {
		b.turn(now, Transition{To: HalfOpen, Event: EventWaited})
	}
	if b.rejects(now) {
		return Permit{}, b.reject(now)
	}
	var probe uint64
	if b.state == HalfOpen {
		b.probe++
		probe = b.probe
		b.probes[probe] = time.AfterFunc(b.cfg.ProbeTimeout, func() { b.overdue(probe) })
	}
	b.stats.Running++
	return Permit{breaker: b, generation: b.generation, probe: probe, start: now}, nil
}

// look returns the error of [Breaker.Allow] if that would reject a call now. It grants
// nothing and changes no state.
func (b *Breaker) look() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); b.rejects(now) {
		return b.reject(now)
	}
	return nil
}

func (b *Breaker) rejects(now time.Duration) bool {
	return b.governed() > 0 || b.state == Open && now < b.until || b.state == HalfOpen && len(b.probes)+b.proved >= b.cfg.Probes
}

// reject makes the error of a call that is not let through.
func (b *Breaker) reject(now time.Duration) error {
	b.stats.Rejected++
	err := &OpenError{Breaker: b.cfg.Name, State: b.state, StaysOpen: max(b.staysOpen(now), b.governed())}
	err.RetryAfter = err.StaysOpen + time.Duration(rand.Float64()*float64(b.cfg.OpenFor)) //nolint:gosec // jitter
	if e := b.cfg.Logger.Debug(); e.Enabled() {
		e.Str(keyBreaker, b.cfg.Name).Stringer(keyState, b.state).Str(keyEvent, "rejected").Float64(keyLatency, 0).
			Int(keyFailures, b.stats.ConsecutiveFailures).Int(keySuccesses, b.proved).
			Float64(keyBackoff, err.RetryAfter.Seconds()).Str(keyErrorType, errorType(err)).Msg("breaker has rejected a call")
	}
	return err
}

// Done reports how the call ended. err is told in the log line if this report
// changes the breaker's state; it may be nil. Only the first report of a permit
// counts. The zero Permit, which comes with an error, ignores reports.
func (p *Permit) Done(o Outcome, err error) {
	b := p.breaker
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.unlock()
	if p.done {
		return
	}
	p.done = true
	b.stats.Running--
	if p.generation != b.generation {
		b.stats.Late++
		return
	}
	now := b.now()
	if o == Success && b.cfg.SlowAfter > 0 && now-p.start > b.cfg.SlowAfter {
		o = Failure
		b.stats.Slow++
	}
	b.count(o)
	cause := Transition{Latency: now - p.start, Err: err}
	switch {
	case b.state == HalfOpen:
		b.probes[p.probe].Stop()
		delete(b.probes, p.probe)
		b.probed(now, o, cause)
	case o != Neutral:
		b.ended(now, o == Failure, cause)
	}
}

// count counts an outcome.
func (b *Breaker) count(o Outcome) {
	switch o {
	case Success:
		b.stats.Successes++
		b.stats.ConsecutiveFailures = 0
	case Failure:
		b.stats.Failures++
		b.stats.ConsecutiveFailures++
	case Neutral:
		b.stats.Neutral++
	}
}

// ended opens a closed breaker if the call that ended was one failure too many.
func (b *Breaker) ended(now time.Duration, failed bool, cause Transition) {
	in := b.window.add(now, failed)
	switch rate := b.cfg.FailureRate; {
	case rate > 0 && in.calls >= b.cfg.MinCalls && float64(in.failures) >= rate*float64(in.calls):
		cause.Event = EventFailureRate
	case rate == 0 && b.stats.ConsecutiveFailures >= b.cfg.Failures:
		cause.Event = EventFailures
	default:
		return
	}
	b.open(now, cause)
}

// probed says what follows from a probe's end.
func (b *Breaker) probed(now time.Duration, o Outcome, cause Transition) {
	switch o {
	case Failure:
		cause.Event = EventProbeFailed
		b.open(now, cause)
	case Success:
		if b.proved++; b.proved == b.cfg.Probes {
			cause.To, cause.Event = Closed, EventRecovered
			b.turn(now, cause)
		}
	case Neutral: // its permit is free again
	}
}

// overdue fails a probe that has not reported in time.
func (b *Breaker) overdue(probe uint64) {
	b.mu.Lock()
	defer b.unlock()
	if b.probes[probe] == nil {
		return // it has reported in this moment, or its time is over anyway
	}
	b.count(Failure)
	b.open(b.now(), Transition{Event: EventProbeTimeout, Latency: b.cfg.ProbeTimeout, Err: ErrProbeTimeout})
}

// open opens the breaker for the configured time and some jitter.
func (b *Breaker) open(now time.Duration, t Transition) {
	t.To = Open
	t.OpenFor = b.cfg.OpenFor + time.Duration(openJitter*rand.Float64()*float64(b.cfg.OpenFor)) //nolint:gosec // jitter
	b.turn(now, t)
}

// turn changes the state. The caller holds b.mu.
func (b *Breaker) turn(now time.Duration, t Transition) {
	t.Breaker, t.From = b.cfg.Name, b.state
	t.ConsecutiveFailures, t.HalfOpenSuccesses = b.stats.ConsecutiveFailures, b.proved
	for _, limit := range b.probes {
		limit.Stop()
	}
	clear(b.probes)
	b.window.clear()
	b.proved = 0
	b.generation++
	b.state, b.until = t.To, now+t.OpenFor
	switch {
	case t.To == Closed:
		b.stats.ConsecutiveFailures = 0
	case t.To == Open && t.From != Open:
		b.stats.Opened++
	}
	if t.From != t.To || t.Event == EventForced {
		b.untold = append(b.untold, t)
	}
}

// Open opens the breaker for so long, without jitter, or for the configured time if
// it is 0 or less. An open breaker gets the new time. What is under way does not count.
func (b *Breaker) Open(d time.Duration) {
	b.mu.Lock()
	defer b.unlock()
	if d <= 0 {
		b.open(b.now(), Transition{Event: EventForced})
		return
	}
	b.turn(b.now(), Transition{To: Open, Event: EventForced, OpenFor: d})
}

// Close closes the breaker and forgets its failures. What is under way does not count.
func (b *Breaker) Close() {
	b.mu.Lock()
	defer b.unlock()
	b.turn(b.now(), Transition{To: Closed, Event: EventForced})
}

// State returns the breaker's state. It is [Open] until the first call after its time.
func (b *Breaker) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Stats returns the counts so far.
func (b *Breaker) Stats() BreakerStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.State, s.HalfOpenSuccesses, s.StaysOpen = b.state, b.proved, b.staysOpen(b.now())
	return s
}

// Describe tells the breaker's settings, for people.
func (b *Breaker) Describe() string {
	c := b.cfg
	opens := fmt.Sprintf("%d failures in a row", c.Failures)
	switch {
	case c.Window > 0:
		opens = fmt.Sprintf("%v %% failures in %v, %d calls at least", 100*c.FailureRate, c.Window, c.MinCalls)
	case c.WindowCalls > 0:
		opens = fmt.Sprintf("%v %% failures in %d calls, %d at least", 100*c.FailureRate, c.WindowCalls, c.MinCalls)
	}
	if c.SlowAfter > 0 {
		opens += fmt.Sprintf(", slow after %v", c.SlowAfter)
	}
	return fmt.Sprintf("breaker %s (%s, open for %v, %d probes)", c.Name, opens, c.OpenFor, c.Probes)
}

// Govern has f asked before each call. While it returns a time over 0, no call is let
// through for so long, whatever the breaker's state is: for those who share a state
// with other processes. f must be quick, and may not call the breaker.
func (b *Breaker) Govern(f func() time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.governor = f
}

// governed is for how long nothing is let through. The caller holds b.mu.
func (b *Breaker) governed() time.Duration {
	if b.governor == nil {
		return 0
	}
	return b.governor()
}

// Notify has f called for each transition from now on, also for those that [Breaker.Open]
// and [Breaker.Close] make of a state into itself. Calls come one at a time and in
// order, on the goroutine of a caller of the breaker, so f must be quick. f may call
// the breaker.
func (b *Breaker) Notify(f func(Transition)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listeners = append(b.listeners, f)
}

// unlock releases b.mu and tells of the transitions that were made under it.
// Whoever finds another one telling leaves it to that one, so they are told in order.
func (b *Breaker) unlock() {
	defer b.mu.Unlock()
	if b.telling || len(b.untold) == 0 {
		return
	}
	b.telling = true
	defer func() { b.telling = false }() // also when a listener panics
	for len(b.untold) > 0 {
		t, listeners := b.untold[0], b.listeners
		b.untold = b.untold[1:]
		b.tell(t, listeners)
	}
}

// tell tells the log and the listeners, without b.mu.
func (b *Breaker) tell(t Transition, listeners []func(Transition)) {
	b.mu.Unlock()
	defer b.mu.Lock()
	t.log(&b.cfg.Logger)
	for _, f := range listeners {
		f(t)
	}
}

// now is the time since the breaker was made. The caller holds b.mu, so it never
// goes back from one caller to the next.
func (b *Breaker) now() time.Duration { return time.Since(b.epoch) }

func (b *Breaker) staysOpen(now time.Duration) time.Duration {
	if b.state != Open {
		return 0
	}
	return max(b.until-now, 0)
}
