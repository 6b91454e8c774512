package consumer

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/event"
)

func TestMetricsByTypeAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := &metrics{types: newTypeCounts("payment", event.Names{TypePrefix: "com.acme."}, []event.Type{"order.placed.v1"})}
	if err := reg.Register(m.types); err != nil {
		t.Fatal(err)
	}
	for i := range 10 * shownTypes {
		m.count(&delivery{eventType: fmt.Sprintf("com.github.push-%d", i)}, handled)
	}
	for _, typ := range []string{"order.placed.v1", "com.acme.order.placed.v1"} { // one type, as two publishers write it
		m.count(&delivery{eventType: typ}, handled)
	}
	m.count(&delivery{}, parked)
	replay := &delivery{eventType: "order.placed.v1"}
	replay.redrive.Replay = 2
	m.count(replay, handled)
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range series.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["outcome"] == "handled" || labels["outcome"] == "parked" {
				got[f.GetName()+" "+labels["type"]+" "+labels["outcome"]] = series.GetCounter().GetValue()
			}
		}
	}
	for name, want := range map[string]float64{
		"farandole_deliveries_total order.placed.v1 handled": 3, "farandole_replays_total order.placed.v1 handled": 1,
		"farandole_deliveries_total other handled": 9 * shownTypes, "farandole_deliveries_total undecodable parked": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if most := 2 * (shownTypes + 4); len(got) > most {
		t.Errorf("%d series, want at most %d", len(got), most)
	}
}
