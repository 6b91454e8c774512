package consumer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats counts deliveries by how their journey ended, since New. Each of the
// counts but InFlight and Alone is a value of the label "outcome" of the metric
// farandole_deliveries_total, in lower case. One event can be delivered often.
type Stats struct {
	Handled   uint64 // the step is durable
	Skipped   uint64 // the handler returned [Skip], which is durable
	Duplicate uint64 // it had taken effect, or lies in the dead letters
	Busy      uint64 // another worker has it; this copy comes again
	Retried   uint64 // it failed and comes again
	Parked    uint64 // dead-lettered
	Released  uint64 // given back without spending an attempt
	Lost      uint64 // another worker took it over
	Dropped   uint64 // a person has dropped its type ([Drop])
	// InFlight is how many deliveries the process holds now.
	InFlight int
	// Alone is how many events here get no answer, again and again, while others do.
	Alone int
}

// outcome is how the journey of one delivery ended: the counts of [Stats].
type outcome int

const (
	handled outcome = iota
	skipped
	duplicate
	busy
	retried
	parked
	released
	lost
	dropped
	outcomes
)

var outcomeNames = [...]string{
	handled: "handled", skipped: "skipped", duplicate: "duplicate", busy: "busy",
	retried: "retried", parked: "parked", released: "released", lost: "lost", dropped: "dropped",
}

// String returns the outcome's metric label.
func (o outcome) String() string { return outcomeNames[o] }

// metrics counts outcomes once, for Stats and for Prometheus.
type metrics struct {
	counts   [outcomes]atomic.Uint64
	types    *typeCounts
	duration prometheus.Histogram
}

func newMetrics(c *Consumer, r prometheus.Registerer) (*metrics, error) {
	labels := prometheus.Labels{keyConsumer: string(c.cfg.Name)}
	m := &metrics{types: newTypeCounts(c.cfg.Name, c.bus.Names(), c.registry.types), duration: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "farandole_handler_seconds", Help: "How long handlers ran.", ConstLabels: labels,
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
	})}
	if r == nil {
		return m, nil
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
	}
	collectors := []prometheus.Collector{
		m.duration, c.unhandled, m.types,
		gauge("farandole_in_flight", "Deliveries this process holds.", func() float64 { return float64(c.inFlight.size()) }),
		gauge("farandole_alone", "Events that get no answer while others do.", func() float64 { return float64(c.doubts.size()) }),
		gauge("farandole_healthy", "1 while the consumer makes progress.", func() float64 {
			if c.Health() != nil {
				return 0
			}
			return 1
		}),
	}
	for _, collector := range collectors {
		if err := r.Register(collector); err != nil {
			return nil, fmt.Errorf("%w: metrics: %w", ErrConfig, err)
		}
	}
	return m, nil
}

// count counts the end of one delivery's journey.
func (m *metrics) count(d *delivery, o outcome) {
	m.counts[o].Add(1)
	m.types.count(d, o)
}

func (m *metrics) observe(d time.Duration) { m.duration.Observe(d.Seconds()) }

// Stats returns the counts so far.
func (c *Consumer) Stats() Stats {
	n := func(o outcome) uint64 { return c.metrics.counts[o].Load() }
	return Stats{
		Handled: n(handled), Skipped: n(skipped), Duplicate: n(duplicate), Busy: n(busy),
		Retried: n(retried), Parked: n(parked), Released: n(released), Lost: n(lost), Dropped: n(dropped),
		InFlight: c.inFlight.size(), Alone: c.doubts.size(),
	}
}
