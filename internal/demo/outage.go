package demo

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/resilience/fleet"
	"github.com/farandole/farandole/services/payment/gateway"
)

// MinOutage is how many orders a run with [Outage] has at least: with fewer, the breakers of
// two processes do not see enough calls to open while it lasts.
const MinOutage = 40

// outagePlacing is over how much time the orders of a run with [Outage] are placed.
const outagePlacing = 5 * time.Second

const (
	// outageAnyway is how long without the end of an order the outage waits for its turn.
	outageAnyway = 5 * time.Second
	// outageMost is how much longer it lasts if no breaker has opened.
	outageMost = 30 * time.Second
)

// breakGateway has the gateway be down for a while, and then fail now and then.
func (r *run) breakGateway(ctx context.Context) error {
	flaky := gateway.Faults{}
	if r.dose.flaky > 0 {
		flaky = gateway.Faults{Mode: gateway.ModeFlaky, Rate: r.dose.flaky, Seed: r.cfg.Seed}
	}
	if r.dose.outage == 0 {
		return r.gateway.SetFaults(flaky)
	}
	ended := func() int { _, confirmed, cancelled := r.watcher.counts(); return confirmed + cancelled }
	if err := awaitCount(ctx, ended, int(r.dose.outageAfter*float64(r.cfg.Orders)), outageAnyway); err != nil {
		return err
	}
	r.notice("payment gateway down for %s", seconds(r.dose.outage))
	if err := r.gateway.SetFaults(gateway.Faults{Mode: gateway.ModeDown}); err != nil {
		return err
	}
	begun := time.Now()
	if !backoff.Wait(ctx, r.dose.outage) {
		return ctx.Err()
	}
	if r.cfg.Faults == Outage { // on a busy machine it may take longer until there is something to see
		if err := awaitCount(ctx, r.breaker.openings, 1, outageMost); err != nil {
			return err
		}
	}
	r.down.Store(time.Since(begun).Milliseconds())
	r.notice("payment gateway works again")
	return r.gateway.SetFaults(flaky)
}

// seconds writes a duration: 5 s, 1.2 s.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}

// BreakerState is what the breaker of the gateway does, as people see it.
type BreakerState string

// The values of BreakerState besides "".
const (
	BreakerOpen    BreakerState = "open"
	BreakerProbing BreakerState = "probing"
	BreakerRamp    BreakerState = "ramp" // it has closed; few handlers run at once
)

// rampFor is how long the breaker bounds the handlers after it has closed: fleet.Config.Ramp.
const rampFor = 2 * time.Second

// breakerView tells people what the breaker of the gateway does, from its events.
type breakerView struct {
	notice func(format string, args ...any)

	mu     sync.Mutex
	state  BreakerState
	opened uint64
	ramped time.Time // when the ramp is over
}

// isBreaker says whether a type is that of a breaker's events.
func isBreaker(t string) bool { return strings.HasPrefix(t, "breaker.") }

// see takes note of an event.
func (v *breakerView) see(e event.Event) {
	var c fleet.Changed
	if !isBreaker(e.Type()) || json.Unmarshal(e.Data(), &c) != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	again := c.Opened == v.opened
	v.opened = c.Opened
	_, cause, _ := strings.Cut(c.Why, ": ")
	cause = strings.TrimPrefix(cause, "resilience: ")
	switch pause := seconds(c.Until.Sub(c.At)); event.Type(e.Type()) {
	case fleet.Opened.Type():
		v.state = BreakerOpen
		switch {
		case again && cause == "": // the prober has no event to probe with; another one takes over
		case again:
			v.notice("a probe failed (%s): payment pauses for another %s", cause, pause)
		case cause == "":
			v.notice("the breaker of the gateway opens: payment pauses for %s", pause)
		default:
			v.notice("the breaker of the gateway opens (%s): payment pauses for %s", cause, pause)
		}
	case fleet.HalfOpened.Type():
		v.state = BreakerProbing
		v.notice("one process of payment probes the gateway")
	case fleet.Closed.Type():
		if v.state == "" {
			return // it has not opened yet
		}
		v.state, v.ramped = BreakerRamp, c.At.Add(rampFor)
		v.notice("the probes succeeded: the breaker closes, and payment lets more and more handlers run")
	}
}

// openings is how often the breaker has opened from closed.
func (v *breakerView) openings() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return int(v.opened) //nolint:gosec // a small number
}

// look returns what the breaker does now.
func (v *breakerView) look(now time.Time) BreakerState {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state == BreakerRamp && now.After(v.ramped) {
		v.state = ""
		v.notice("payment is back at full speed")
	}
	return v.state
}
