package consumer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
)

// unhandled are the events that came to this process and have no handler here,
// because another version of the service handles their type. They are given back,
// and no attempt is spent, until a replica handles them. They do not hold their keys.
type unhandled struct {
	// patience is how long an event may look for a replica that handles it before
	// this one is unhealthy, and how long an event is shown that comes no more.
	patience time.Duration
	longest  time.Duration // that an event stays away, once patience is over
	remedy   string
	desc     *prometheus.Desc

	mu     sync.Mutex
	events map[place]stray
}

// place is where a message is stored.
type place struct {
	stream   string
	sequence uint64
}

// stray is an event without a handler here.
type stray struct {
	eventType event.Type
	first     time.Time // when it came first
	until     time.Time // when it must have come again, unless it went elsewhere
}

// An event without a handler stays away for about shortestStray at first, and for
// no more than about shortStray until patience is over.
const (
	shortestStray = 100 * time.Millisecond
	shortStray    = time.Second
)

// shownTypes bounds the types that health and metrics name.
const shownTypes = 32

func newUnhandled(cfg Config) *unhandled {
	remedy := fmt.Sprintf("run a version of %s that handles them, or drop them with `farandole consumer drop %s`", cfg.Name, cfg.Name)
	if cfg.From != nil {
		remedy = fmt.Sprintf("run a version of %s that handles them, with HandleOthers if need be, or narrow the subjects of From", cfg.Name)
	}
	return &unhandled{
		remedy: remedy, patience: 2 * cfg.Lease, longest: cfg.Lease / 3, events: map[place]stray{},
		desc: prometheus.NewDesc("farandole_unhandled_events", "Events that come back because no replica handles their type.",
			[]string{"type"}, prometheus.Labels{keyConsumer: string(cfg.Name)}),
	}
}

// handles reports whether an event has a handler here. One whose type is not
// Farandole's has, if it comes from its stream: what refuses it is the registry.
func (c *Consumer) handles(e event.Event) bool {
	h, _, err := c.registry.handlerOf(c.bus.Names(), e.Type())
	return h != nil || err != nil && c.cfg.From == nil
}

// stray gives an event back that has no handler here, before anything is claimed
// or spent.
func (c *Consumer) stray(d *delivery, e event.Event) result {
	t, err := c.bus.Names().TypeOf(e.Type())
	if err != nil { // a type of others
		t = event.Type(e.Type())
	}
	delay, first := c.unhandled.note(d, t, time.Now())
	if first {
		c.eventLog(d, c.log.Debug()).Msg("no handler here, given back")
	}
	r := c.giveBack(d, released, delay)
	r.again = 0
	return r
}

// note remembers an event that is given back, and says for how long it is.
func (u *unhandled) note(d *delivery, t event.Type, now time.Time) (delay time.Duration, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := place{d.stream, d.sequence}
	s, again := u.events[at]
	if !again || now.After(s.until) {
		s = stray{eventType: t, first: now}
	}
	longest := shortStray
	if now.Sub(s.first) >= u.patience {
		longest = max(longest, u.longest) // nobody seems to be there
	}
	// With jitter: the server deals out in turn, and events that come due together
	// would meet the same replicas each time.
	delay = backoff.Around(min(longest, shortestStray<<min(d.delivered-1, 16)))
	s.until = now.Add(delay + u.patience)
	u.events[at] = s
	return delay, !again
}

// counts are the events by type that still come back, and of those that have
// looked for a handler for longer than the patience.
func (u *unhandled) counts(now time.Time) (all, long map[event.Type]int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all, long = map[event.Type]int{}, map[event.Type]int{}
	for at, s := range u.events {
		if now.After(s.until) {
			delete(u.events, at)
			continue
		}
		all[s.eventType]++
		if now.Sub(s.first) >= u.patience {
			long[s.eventType]++
		}
	}
	return all, long
}

// size counts the events that still come back.
func (u *unhandled) size() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.events)
}

// err names the types that nobody handles.
func (u *unhandled) err(now time.Time) error {
	_, long := u.counts(now)
	if len(long) == 0 {
		return nil
	}
	var types []string
	for _, t := range slices.Sorted(maps.Keys(long)) {
		types = append(types, fmt.Sprintf("%s (%d events wait)", t, long[t]))
	}
	if more := len(types) - shownTypes; more > 0 {
		types = append(types[:shownTypes], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w: %w: %s: %s", ErrUnhealthy, errNoHandler, strings.Join(types, ", "), u.remedy)
}

// Describe and Collect make it a metric.
func (u *unhandled) Describe(ch chan<- *prometheus.Desc) { ch <- u.desc }

func (u *unhandled) Collect(ch chan<- prometheus.Metric) {
	all, _ := u.counts(time.Now())
	for i, t := range slices.Sorted(maps.Keys(all)) {
		if i == shownTypes {
			return
		}
		ch <- prometheus.MustNewConstMetric(u.desc, prometheus.GaugeValue, float64(all[t]), string(t))
	}
}
