package fleet

import (
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/resilience"
)

// Breaker is a breaker that all processes of a consumer share. It is safe for
// concurrent use.
type Breaker struct {
	cfg   Config
	local *resilience.Breaker
	bus   *bus.Bus
	store *pauses.Store
	log   zerolog.Logger
	name  string
	id    string // this process, as in "host 5vjeqg75"

	turned chan struct{} // signals that something has changed

	mu sync.Mutex
	// shared is what the processes agree on, as far as this one knows. The zero value is
	// a closed breaker that nobody has told of.
	shared pauses.Breaker
	// until is shared.Until by this process's monotonic clock; timed says that it is known.
	until time.Time
	timed bool
	// tripped is why the own breaker has opened, if that is not shared yet.
	tripped *resilience.Transition
	// recovered says that the own breaker's probes have all succeeded.
	recovered bool
	// known says that this process has heard what is shared, or that it cannot.
	known bool
	// stale says that it has missed something since: whatever it hears next counts.
	stale bool
	// mute is until when this process does not try to change what is shared, because it
	// could not, unless it hears of it before. Zero if it may try.
	mute time.Time
	// untold says that what this process has is not shared.
	untold bool
	// warned says that the log has it that this process has the breaker for itself.
	warned bool
}

// New ties a breaker to a consumer. It does no I/O. Until [Breaker.Run] is called the
// breaker is this process's alone. The error matches [ErrConfig] or
// [event.ErrInvalidConsumer].
func New(b *bus.Bus, cfg Config) (*Breaker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Logger = b.LoggerOr(cfg.Logger)
	f := &Breaker{
		cfg: cfg, local: cfg.Breaker, bus: b, store: pauses.New(b), name: cfg.Breaker.Name(), id: processID(),
		log:    cfg.Logger.With().Str("consumer", string(cfg.Consumer)).Str("breaker", cfg.Breaker.Name()).Logger(),
		turned: make(chan struct{}, 1),
	}
	f.local.Govern(f.governs)
	f.local.Notify(f.notice)
	return f, nil
}

func processID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + " " + strings.ToLower(rand.Text()[:8])
}

// ID names this process, as it does in what is shared.
func (f *Breaker) ID() string { return f.id }

// reason names the hold of the consumer.
func (f *Breaker) reason() string { return "breaker " + f.name }

// Excuse returns the error of a handler for a failure of the dependency: while the
// breaker is not closed it was no attempt ([consumer.NotYet]), and the event comes back
// when the dependency may be probed. Else it is err, and so is an answer of the
// dependency, as [resilience.Classify] knows it, and nil. Report the call to the breaker before.
func (f *Breaker) Excuse(err error) error {
	if resilience.Classify(err) == resilience.Success {
		return err
	}
	f.mu.Lock()
	after := f.left()
	f.mu.Unlock()
	if f.local.State() == resilience.Closed && after <= 0 {
		return err
	}
	return consumer.NotYet(err, max(after, f.local.Stats().StaysOpen))
}

// State is what this process knows of the shared state.
func (f *Breaker) State() resilience.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return stateOf(f.shared.State)
}

func stateOf(s pauses.State) resilience.State {
	switch s {
	case pauses.Open:
		return resilience.Open
	case pauses.HalfOpen:
		return resilience.HalfOpen
	case pauses.Closed:
	}
	return resilience.Closed
}

// governs keeps calls of this process from the dependency while another one probes, or
// nobody does yet.
func (f *Breaker) governs() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left()
}

// left is for how long this process makes no calls; at least a moment while that is not
// known. The caller holds f.mu.
func (f *Breaker) left() time.Duration {
	switch {
	case f.shared.State != pauses.Open && f.shared.State != pauses.HalfOpen, f.probes():
		return 0
	case !f.timed:
		return leastLeft
	}
	return max(time.Until(f.until), leastLeft)
}

// probes says that this process is the prober. The caller holds f.mu.
func (f *Breaker) probes() bool {
	return f.shared.State == pauses.HalfOpen && f.shared.Prober == f.id
}

// notice hears of the own breaker's transitions.
func (f *Breaker) notice(t resilience.Transition) {
	switch {
	case t.Event == resilience.EventForced:
		return // from here
	case t.To == resilience.Open:
		f.mu.Lock()
		f.tripped = &t
		f.mu.Unlock()
	case t.Event == resilience.EventRecovered:
		f.mu.Lock()
		f.recovered = true
		f.mu.Unlock()
	}
	f.signal()
}

func (f *Breaker) signal() {
	select {
	case f.turned <- struct{}{}:
	default:
	}
}

const (
	// leastLeft is for how long a breaker is said to be open whose time is over, or not known.
	leastLeft = 50 * time.Millisecond
	// lease is how long a prober counts as alive that does not renew, and renewEvery how often it does.
	lease      = 2 * time.Second
	renewEvery = 500 * time.Millisecond
	// lookEvery is how often is looked whether there is an event to probe with, or a
	// prober has run out of them.
	lookEvery = 20 * time.Millisecond
	// idleProber is how long a prober without an event stays one.
	idleProber = 500 * time.Millisecond
	// shareTimeout bounds one change of what is shared, and shareAgain is when one is
	// tried again that could not be stored; about muteFor if it is denied, or there is no bucket.
	shareTimeout = 5 * time.Second
	shareAgain   = 200 * time.Millisecond
	muteFor      = 5 * time.Second
	// rampSteps is in how many steps the handlers double after the breaker has closed.
	rampSteps = 8
)
