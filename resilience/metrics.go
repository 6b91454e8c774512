package resilience

import (
	"errors"
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// meter registers metrics that read their values when they are collected, so a call
// pays nothing for them. labels are constant, and each metric may have one more.
type meter struct {
	registerer prometheus.Registerer
	labels     prometheus.Labels
	errs       []error
}

func (m *meter) gauge(name, help string, value func() int, more ...string) {
	m.register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: m.with(more)},
		func() float64 { return float64(value()) }))
}

func (m *meter) counter(name, help string, value func() uint64, more ...string) {
	m.register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: m.with(more)},
		func() float64 { return float64(value()) }))
}

// with are the labels with one more, a name and a value, if it is given.
func (m *meter) with(more []string) prometheus.Labels {
	labels := maps.Clone(m.labels)
	if len(more) > 0 {
		labels[more[0]] = more[1]
	}
	return labels
}

func (m *meter) register(c prometheus.Collector) {
	m.errs = append(m.errs, m.registerer.Register(c))
}

// register registers the guard's metrics.
func (g *Guard) register(r prometheus.Registerer) error {
	m := &meter{registerer: r, labels: prometheus.Labels{"guard": g.cfg.Name}}
	for o := range outcomes {
		m.counter("farandole_guard_attempts_total", "Attempts by how they ended.", g.ended[o].Load, "outcome", Outcome(o).String())
	}
	for p := range policies {
		m.counter("farandole_guard_rejected_total", "Calls that a policy did not let through.", g.rejected[p].Load, "policy", p.String())
	}
	m.counter("farandole_guard_retries_total", "Attempts beyond the first of a call.", g.retries.Load)
	m.counter("farandole_guard_timeouts_total", "Attempts that outran their timeout.", g.timeouts.Load)
	m.counter("farandole_guard_fallbacks_total", "Calls that a fallback answered.", g.fallbacks.Load)
	m.gauge("farandole_guard_running", "Attempts under way.", func() int { return g.Stats().Running })
	m.gauge("farandole_guard_waiting", "Calls that wait.", func() int { return g.Stats().Retry.Waiting }, "policy", "retry")
	m.gauge("farandole_guard_waiting", "Calls that wait.", func() int { return g.Stats().Rate.Waiting }, "policy", policyRate.String())
	m.gauge("farandole_guard_waiting", "Calls that wait.", func() int { return g.Stats().Bulkhead.Queued }, "policy", policyBulkhead.String())
	m.gauge("farandole_guard_rate_keys", "Keys that have a rate limit of their own.", func() int { return g.Stats().Rate.Keys })
	return errors.Join(m.errs...)
}

// register registers the breaker's metrics.
func (b *Breaker) register(r prometheus.Registerer) error {
	m := &meter{registerer: r, labels: prometheus.Labels{keyBreaker: b.cfg.Name}}
	for s := range states {
		m.gauge("farandole_breaker_state", "1 for the state that the breaker is in, else 0.", func() int {
			if b.State() == State(s) {
				return 1
			}
			return 0
		}, keyState, State(s).String())
	}
	counter := func(outcome string, value func(BreakerStats) uint64) {
		m.counter("farandole_breaker_calls_total", "Calls by what they meant to the breaker.", func() uint64 { return value(b.Stats()) }, "outcome", outcome)
	}
	counter(Success.String(), func(s BreakerStats) uint64 { return s.Successes })
	counter(Failure.String(), func(s BreakerStats) uint64 { return s.Failures })
	counter(Neutral.String(), func(s BreakerStats) uint64 { return s.Neutral })
	counter("late", func(s BreakerStats) uint64 { return s.Late })
	counter("rejected", func(s BreakerStats) uint64 { return s.Rejected })
	m.counter("farandole_breaker_slow_total", "Failures that would be successes if they were quicker.", func() uint64 { return b.Stats().Slow })
	m.counter("farandole_breaker_opened_total", "How often the breaker opened.", func() uint64 { return b.Stats().Opened })
	m.gauge("farandole_breaker_running", "Calls under way.", func() int { return b.Stats().Running })
	return errors.Join(m.errs...)
}
