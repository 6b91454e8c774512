package consumer

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats counts deliveries by how their journey ended, since New.
type Stats struct {
	Handled, Skipped, Duplicate, Busy, Retried, Parked, Released, Lost, Dropped uint64
	// InFlight is how many deliveries the process holds now.
	InFlight int
	// Alone is how many events here get no answer, again and again, while others do.
	Alone int
}

// metrics counts outcomes once, for Stats and for Prometheus.
type metrics struct {
	counts   [outcomes]atomic.Uint64
	duration prometheus.Histogram
}

func newMetrics(c *Consumer, r prometheus.Registerer) (*metrics, error) {
	labels := prometheus.Labels{keyConsumer: string(c.cfg.Name)}
	m := &metrics{duration: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "farandole_handler_seconds", Help: "How long handlers ran.", ConstLabels: labels,
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
	})}
	if r == nil {
		return m, nil
	}
	collectors := []prometheus.Collector{
		m.duration, c.unhandled,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "farandole_in_flight", Help: "Deliveries this process holds.", ConstLabels: labels,
		}, func() float64 { return float64(c.flight.size()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "farandole_alone", Help: "Events that get no answer while others do.", ConstLabels: labels,
		}, func() float64 { return float64(c.doubts.size()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "farandole_healthy", Help: "1 while the consumer makes progress.", ConstLabels: labels,
		}, func() float64 {
			if c.Health() != nil {
				return 0
			}
			return 1
		}),
	}
	for o := range outcomes {
		collectors = append(collectors, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "farandole_deliveries_total", Help: "Deliveries by how their journey ended.",
			ConstLabels: prometheus.Labels{keyConsumer: string(c.cfg.Name), "outcome": o.String()},
		}, func() float64 { return float64(m.counts[o].Load()) }))
	}
	for _, collector := range collectors {
		if err := r.Register(collector); err != nil {
			return nil, fmt.Errorf("%w: metrics: %w", ErrConfig, err)
		}
	}
	return m, nil
}

func (m *metrics) count(o Outcome) { m.counts[o].Add(1) }

func (m *metrics) observe(d time.Duration) { m.duration.Observe(d.Seconds()) }

// Stats returns the counts so far.
func (c *Consumer) Stats() Stats {
	n := func(o Outcome) uint64 { return c.metrics.counts[o].Load() }
	return Stats{
		Handled: n(Handled), Skipped: n(Skipped), Duplicate: n(Duplicate), Busy: n(Busy),
		Retried: n(Retried), Parked: n(ParkedNow), Released: n(Released), Lost: n(Lost), Dropped: n(Dropped),
		InFlight: c.flight.size(), Alone: c.doubts.size(),
	}
}
