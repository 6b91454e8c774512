package status

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

const (
	// fresh is how long a reading is given to whoever asks, at least.
	fresh = 5 * time.Second
	// restFactor is how many times as long as a reading took the next one waits: a
	// system with many dead letters is not read all the time.
	restFactor = 10
	// readTimeout bounds a reading.
	readTimeout = 30 * time.Second
	// shownTypes bounds the types of dead letters that are told apart: whoever publishes
	// chooses them.
	shownTypes = 64
)

// Collector tells where a system stands as metrics. It reads when it is asked, unless
// it has just done so.
type Collector struct {
	bus *bus.Bus

	mu      sync.Mutex
	last    System
	backlog map[event.Consumer]map[event.Type]uint64
	err     error
	until   time.Time // the last reading counts
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector does no I/O.
func NewCollector(b *bus.Bus) *Collector { return &Collector{bus: b} }

// Health is the error of the last reading.
func (c *Collector) Health() error {
	_, _, err := c.read()
	return err
}

func (c *Collector) read() (System, map[event.Consumer]map[event.Type]uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begin := time.Now()
	if begin.Before(c.until) {
		return c.last, c.backlog, c.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	c.last, c.err = Read(ctx, c.bus)
	c.backlog = map[event.Consumer]map[event.Type]uint64{}
	for _, s := range c.last.Consumers {
		if c.err == nil {
			c.backlog[s.Consumer], c.err = consumer.Backlog(ctx, c.bus, s.Status)
		}
	}
	c.until = time.Now().Add(max(fresh, restFactor*time.Since(begin)))
	return c.last, c.backlog, c.err
}

// desc is what one metric is called, and what its labels are.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("farandole_"+name, help, labels, nil)
}

//nolint:gochecknoglobals // descriptions of metrics
var (
	descUp         = desc("status_up", "1 while the system can be read.")
	descMessages   = desc("stream_messages", "Messages in a stream.", "stream")
	descBytes      = desc("stream_bytes", "Bytes of a stream.", "stream")
	descFull       = desc("stream_full_ratio", "How much of its limits a stream has used, from 0 to 1; only of streams with limits.", "stream")
	descBehind     = desc("stream_replicas_behind", "Replicas of a stream that are away or lack messages.", "stream")
	descLag        = desc("consumer_lag_events", "Events that are stored for a consumer and have not ended.", "consumer")
	descOldest     = desc("consumer_oldest_event_seconds", "Age of the oldest event that has not ended; 0 if there is none.", "consumer")
	descBacklog    = desc("consumer_backlog_events", "Events that were never delivered to a consumer; none of one with partitions.", "consumer", "type")
	descInFlight   = desc("consumer_in_flight_events", "Events that a process of a consumer holds.", "consumer")
	descRetries    = desc("consumer_retries_waiting", "Events that have failed, or were given back, and come again.", "consumer")
	descWorkers    = desc("consumer_workers", "Processes that run a consumer, paused or not.", "consumer")
	descUnattended = desc("consumer_unattended", "1 if nobody runs a consumer.", "consumer")
	descPaused     = desc("consumer_paused", "1 while an operator or an open breaker holds a consumer up.", "consumer")
	descLetters    = desc("dead_letters", "Dead letters, those that are being replayed included.", "consumer", "type")
	descReplays    = desc("replays_waiting", "Dead letters that are being replayed.", "consumer")
)

// Describe tells all descriptions.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descUp, descMessages, descBytes, descFull, descBehind, descLag, descOldest, descBacklog, descInFlight, descRetries,
		descWorkers, descUnattended, descPaused, descLetters, descReplays,
	} {
		ch <- d
	}
}

// Collect tells what was read. If nothing could be, that is all that it tells: old
// numbers would look like new ones.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s, backlog, err := c.read()
	gauge(descUp, number(err == nil))
	if err != nil {
		return
	}
	for _, t := range s.Streams {
		gauge(descMessages, float64(t.Messages), t.Name)
		gauge(descBytes, float64(t.Bytes), t.Name)
		gauge(descBehind, float64(max(0, t.Replicas-t.Current)), t.Name)
		if full, limited := t.Full(); limited {
			gauge(descFull, full, t.Name)
		}
	}
	for _, k := range s.Consumers {
		name, age := string(k.Consumer), 0.0
		if !k.Oldest.IsZero() {
			age = max(0, time.Since(k.Oldest).Seconds())
		}
		gauge(descLag, float64(k.Lag), name)
		gauge(descOldest, age, name)
		gauge(descInFlight, float64(k.InFlight), name)
		gauge(descRetries, float64(k.Retries), name)
		gauge(descWorkers, float64(k.Workers), name)
		gauge(descUnattended, number(k.Unattended), name)
		gauge(descPaused, number(len(k.Paused) > 0), name)
		gauge(descReplays, float64(k.Replays), name)
		for t, n := range backlog[k.Consumer] {
			gauge(descBacklog, float64(n), name, string(t))
		}
	}
	for by, n := range s.lettersByType() {
		gauge(descLetters, float64(n), string(by.consumer), by.eventType)
	}
}

// letterType is what dead letters are counted by.
type letterType struct {
	consumer  event.Consumer
	eventType string
}

// lettersByType counts them by consumer and type; a consumer without any has a 0.
func (s System) lettersByType() map[letterType]int {
	types := map[string]int{}
	for _, g := range s.Letters.Groups {
		types[g.Type] += g.Count
	}
	var frequent []string
	for t := range types {
		frequent = append(frequent, t)
	}
	slices.SortFunc(frequent, func(a, b string) int { return cmp.Or(cmp.Compare(types[b], types[a]), cmp.Compare(a, b)) })
	frequent = frequent[:min(len(frequent), shownTypes)]
	counts := map[letterType]int{}
	for _, c := range s.Consumers {
		if c.DeadLetters+c.Replays == 0 {
			counts[letterType{c.Consumer, ""}] = 0
		}
	}
	all := map[event.Consumer]int{}
	for _, g := range s.Letters.Groups {
		t := g.Type
		switch {
		case t == "":
			t = "undecodable"
		case !slices.Contains(frequent, t):
			t = "other"
		}
		for c, n := range g.Consumers {
			counts[letterType{c, t}] += n
			all[c] += n
		}
	}
	for _, c := range s.Consumers { // those of further kinds, which have no group
		if rest := c.DeadLetters + c.Replays - all[c.Consumer]; rest > 0 {
			counts[letterType{c.Consumer, "other"}] += rest
		}
	}
	return counts
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
