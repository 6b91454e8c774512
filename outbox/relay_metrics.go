package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/internal/backoff"
)

// relayMetrics count what a relay does.
type relayMetrics struct {
	published prometheus.Counter
	parked    prometheus.Counter
	failures  *prometheus.CounterVec
	duration  prometheus.Histogram
	sampler   sampler
}

func newRelayMetrics(r *Relay, to prometheus.Registerer) (*relayMetrics, error) {
	labels := prometheus.Labels{"outbox": r.outbox.cfg.Prefix + "outbox"}
	m := &relayMetrics{
		published: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "farandole_outbox_published_total", Help: "Rows this relay has published.", ConstLabels: labels,
		}),
		parked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "farandole_outbox_parked_total", Help: "Rows this relay has parked.", ConstLabels: labels,
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "farandole_outbox_failures_total", Help: "Tries to publish a row that failed.", ConstLabels: labels,
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "farandole_outbox_batch_seconds", Help: "How long it took to publish and mark a batch.", ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
	}
	if to == nil {
		return m, nil
	}
	collectors := []prometheus.Collector{m.published, m.parked, m.failures, m.duration}
	gauge := func(name, help string, extra prometheus.Labels, value func() float64) {
		for k, v := range labels {
			extra[k] = v
		}
		collectors = append(collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: extra}, value))
	}
	for status, count := range map[Status]func(Stats) int64{
		Pending:    func(s Stats) int64 { return s.Pending },
		Processing: func(s Stats) int64 { return s.Processing },
		DeadLetter: func(s Stats) int64 { return s.Parked },
	} {
		gauge("farandole_outbox_rows", "Rows of the outbox, some seconds ago.", prometheus.Labels{"status": string(status)}, func() float64 {
			s, _ := m.sampler.last()
			return float64(count(s))
		})
	}
	gauge("farandole_outbox_oldest_pending_seconds", "Age of the oldest row that is not published.", prometheus.Labels{}, m.sampler.oldest)
	gauge("farandole_outbox_healthy", "1 while rows are going out.", prometheus.Labels{}, func() float64 {
		if r.Health() != nil {
			return 0
		}
		return 1
	})
	for _, c := range collectors {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("%w: Metrics: %w", ErrConfig, err)
		}
	}
	return m, nil
}

// sampler keeps the latest counts, so that a scrape does not wait for the database.
type sampler struct {
	mu    sync.Mutex
	stats Stats
	at    time.Time
}

func (s *sampler) set(stats Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats, s.at = stats, time.Now()
}

func (s *sampler) last() (Stats, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats, s.at
}

// oldest returns the age of the oldest open row. It grows while the database does not answer.
func (s *sampler) oldest() float64 {
	stats, at := s.last()
	if stats.Oldest == 0 {
		return 0
	}
	return (stats.Oldest + time.Since(at)).Seconds()
}

// sampleEvery is how often the rows are counted, unless a count takes long.
const sampleEvery = 2 * time.Second

// sample counts the rows from time to time.
func (r *Relay) sample(ctx context.Context) {
	for {
		begin := time.Now()
		// The claims meet the same error, and report it.
		if stats, err := r.outbox.Stats(ctx); err == nil {
			r.metrics.sampler.set(stats)
		}
		if !backoff.Wait(ctx, max(sampleEvery, 20*time.Since(begin))) {
			return
		}
	}
}
