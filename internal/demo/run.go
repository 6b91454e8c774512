package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/services/audit"
)

// Phases of a run.
const (
	phasePlacing   = "placing"
	phaseSettling  = "settling"
	phaseReplaying = "replaying"
	phaseAuditing  = "auditing"
)

const progressEvery = 100 * time.Millisecond

// ErrConfig is returned by Run when a setting is wrong.
var ErrConfig = errors.New("demo: configuration")

// errDatabaseURL does not show the URL: it may hold a password.
var errDatabaseURL = fmt.Errorf("%w: DatabaseURL: want one that begins with postgres://", ErrConfig)

func (c Config) withDefaults() Config {
	c.Orders = cmp.Or(c.Orders, 200)
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.Faults = cmp.Or(c.Faults, Some)
	c.Patience = cmp.Or(c.Patience, time.Minute)
	if c.Faults == Outage {
		c.Rate = cmp.Or(c.Rate, float64(c.Orders)/outagePlacing.Seconds())
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	if c.Notice == nil {
		c.Notice = func(string) {}
	}
	return c
}

func (c Config) validate() error {
	_, known := doses[c.Faults]
	switch {
	case c.Orders < 1, c.Concurrency < 1, c.Rate < 0:
		return fmt.Errorf("%w: Orders %d, Concurrency %d, Rate %v", ErrConfig, c.Orders, c.Concurrency, c.Rate)
	case !known:
		return fmt.Errorf("%w: Faults %q", ErrConfig, c.Faults)
	case c.Faults == Outage && c.Orders < MinOutage:
		return fmt.Errorf("%w: Faults %q with %d orders: want at least %d, or the breaker sees too few calls to open", ErrConfig, c.Faults, c.Orders, MinOutage)
	case c.DatabaseURL != "" && !database.IsURL(c.DatabaseURL):
		return errDatabaseURL
	case c.Patience < 0:
		return fmt.Errorf("%w: Patience %v", ErrConfig, c.Patience)
	default:
		return nil
	}
}

// Run runs a whole system in this process and audits it. What the audit finds is in
// the report. An error means that there is no report: a setting is wrong
// ([ErrConfig]), a part could not be started or ended by itself, or ctx ended. When
// Run returns, nothing runs any more and nothing is left on disk.
func Run(ctx context.Context, cfg Config) (Report, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return Report{}, err
	}
	begun := time.Now()
	s, err := startSystem(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	r := newRun(s, begun)
	report, err := r.perform(ctx)
	report.ElapsedMS = time.Since(begun).Milliseconds()
	if err == nil && cfg.KeepOpen != nil {
		cfg.KeepOpen(report, Address{NATS: s.server.ClientURL(), Shop: s.shops[0]})
	}
	if err = errors.Join(err, s.stop()); err != nil {
		return Report{}, err
	}
	return report, nil
}

// run is one run of the demo.
type run struct {
	*system
	dose       dose
	begun      time.Time
	watcher    *watcher
	duplicator *duplicator
	breaker    *breakerView
	witness    audit.Witness

	phase   atomic.Value // string
	placed  atomic.Int64
	crashes atomic.Int64
	down    atomic.Int64 // for how many ms the gateway was down; 0 while it is not over

	saying sync.Mutex
}

func newRun(s *system, begun time.Time) *run {
	r := &run{system: s, dose: doses[s.cfg.Faults], begun: begun}
	r.phase.Store(phasePlacing)
	r.duplicator = newDuplicator(s.bus, r.dose.duplicates, 16*s.cfg.Orders, r.random(1))
	r.breaker = &breakerView{notice: r.notice}
	r.watcher = &watcher{bus: s.bus, known: map[event.EventKey]bool{}, seen: func(e event.Event) {
		r.duplicator.offer(e)
		r.breaker.see(e)
	}}
	return r
}

// random returns a source of random numbers. Each kind of fault has its own, so that
// none depends on how often the others draw.
func (r *run) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(r.cfg.Seed, stream)) //nolint:gosec // reproducible on purpose
}

func (r *run) notice(format string, args ...any) {
	r.saying.Lock()
	defer r.saying.Unlock()
	r.cfg.Notice(fmt.Sprintf(format, args...))
}

// perform runs the phases, and in the background what watches the run.
func (r *run) perform(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	backgroundCtx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	for _, f := range []func(context.Context) error{r.watcher.run, r.duplicator.run, r.showProgress, r.watchServices, r.watchMarks} {
		background.Go(func() {
			if err := f(backgroundCtx); err != nil {
				cancel(err)
			}
		})
	}
	report, err := r.phases(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	stop()
	background.Wait()
	return report, err
}

// watchMarks watches what the audit of an outage has to know.
func (r *run) watchMarks(ctx context.Context) error {
	if r.dose.outage == 0 {
		return nil
	}
	return r.witness.Run(ctx, r.bus)
}

// watchServices returns the error of a service that ends by itself.
func (r *run) watchServices(ctx context.Context) error {
	select {
	case err := <-r.died:
		return err
	case <-ctx.Done():
		return nil
	}
}
