package consumer

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/event"
)

// What the label "type" says of events that are not counted by their type.
const (
	typeOther       = "other"       // beyond the handled types, and a number of others
	typeUndecodable = "undecodable" // they could not be read
)

// typeCounts counts deliveries, and replays among them, by event type and outcome. So
// that a publisher cannot make up any number of series, only types with a handler are
// sure to have a count of their own, and the first few others.
type typeCounts struct {
	names                event.Names
	deliveries, replayed *prometheus.Desc

	mu      sync.RWMutex
	byType  map[string]*ofType // by the event's own type: with its prefix, or without
	byLabel map[string]*ofType
	others  int
}

// ofType counts one type.
type ofType struct{ deliveries, replayed [outcomes]atomic.Uint64 }

func newTypeCounts(name event.Consumer, n event.Names, handled []event.Type) *typeCounts {
	labels := prometheus.Labels{keyConsumer: string(name)}
	t := &typeCounts{
		names: n, byType: map[string]*ofType{}, byLabel: map[string]*ofType{typeUndecodable: {}},
		deliveries: prometheus.NewDesc("farandole_deliveries_total", "Deliveries by event type and how their journey ended.", []string{"type", "outcome"}, labels),
		replayed: prometheus.NewDesc("farandole_replays_total", "Deliveries that were replays of dead letters, by event type and how their journey ended.",
			[]string{"type", "outcome"}, labels),
	}
	for _, typ := range handled {
		t.byLabel[string(typ)] = &ofType{}
	}
	return t
}

// count counts the end of one delivery's journey.
func (t *typeCounts) count(d *delivery, o outcome) {
	of := t.of(d.eventType)
	of.deliveries[o].Add(1)
	if d.redrive.Replay > 0 {
		of.replayed[o].Add(1)
	}
}

// of are the counts of an event's type.
func (t *typeCounts) of(typ string) *ofType {
	t.mu.RLock()
	of := t.byType[typ]
	t.mu.RUnlock()
	if of != nil {
		return of
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if of = t.byType[typ]; of != nil {
		return of
	}
	label := typ
	if known, err := t.names.TypeOf(typ); err == nil {
		label = string(known)
	} else if typ == "" {
		label = typeUndecodable
	}
	if of = t.byLabel[label]; of == nil && t.others == shownTypes {
		if of = t.byLabel[typeOther]; of == nil {
			of = &ofType{}
			t.byLabel[typeOther] = of
		}
		return of // not remembered: there may be any number of them
	}
	if of == nil {
		of = &ofType{}
		t.byLabel[label] = of
		t.others++
	}
	t.byType[typ] = of
	return of
}

// Describe and Collect make it metrics.
func (t *typeCounts) Describe(ch chan<- *prometheus.Desc) { ch <- t.deliveries; ch <- t.replayed }

// Collect tells all outcomes of a type, so that a rate sees the first one; of replays
// those that there were.
func (t *typeCounts) Collect(ch chan<- prometheus.Metric) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for label, of := range t.byLabel {
		for o := range outcomes {
			ch <- prometheus.MustNewConstMetric(t.deliveries, prometheus.CounterValue, float64(of.deliveries[o].Load()), label, o.String())
			if n := of.replayed[o].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(t.replayed, prometheus.CounterValue, float64(n), label, o.String())
			}
		}
	}
}
