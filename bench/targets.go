package main

import (
	"fmt"

	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// target is a promise about figures of one run.
type target struct {
	name    string
	bound   float64
	atMost  bool // else at least
	measure func(*results) (float64, bool)
}

// verdict is a target and what was measured.
type verdict struct {
	Name     string   `json:"name"`
	Bound    float64  `json:"bound"`
	AtMost   bool     `json:"at_most"`
	Measured *float64 `json:"measured"` // null when it was not
	OK       bool     `json:"ok"`
}

func targets() []target {
	return []target{
		{"hop, KV ledger / raw", 0.45, false, hops(settingR1, nameKV, settingR1, nameRaw)},
		{"hop, partition ledger / raw", 0.60, false, hops(settingR1, namePartition, settingR1, nameRaw)},
		{"hop, partition ledger / raw, three replicas", 0.90, false, hops(settingR3, namePartition, settingR3, nameRaw)},
		{"hop, partition ledger / raw, sync_interval: always", 5.0, false, hops(settingSync, namePartition, settingSync, nameRaw)},
		{"hop, partition ledger / Watermill without dedup", 2.0, false, hops(settingR1, namePartition, settingR1, nameWatermill)},
		{"hop, partition ledger / Watermill without dedup, three replicas", 3.0, false, hops(settingR3, namePartition, settingR3, nameWatermill)},
		{"hop, KV ledger / Watermill without dedup", 2.2, false, hops(settingR1, nameKV, settingR1, nameWatermill)},
		{"hop, partition ledger / naive loop, sync_interval: always", 8, false, hops(settingSync, namePartition, settingSync, nameNaive)},
		{"publish, bus / raw", 0.90, false, func(r *results) (float64, bool) {
			if r.Publish == nil {
				return 0, false
			}
			return median(r.Publish.Bus) / median(r.Publish.Raw), true
		}},
		{"decode of a binary event, allocations", 12, true, func(r *results) (float64, bool) {
			for _, f := range r.Codec {
				if f.Name == nameDecodeBinary {
					return float64(f.Allocs), true
				}
			}
			return 0, false
		}},
		{"rejected call / the timeout of 10 ms that it saves", 0.001, true, func(r *results) (float64, bool) {
			ns := map[string]float64{}
			for _, f := range r.Policies {
				ns[f.Name] = median(f.NS)
			}
			return ns[nameRejected] / ns[nameTimedOut], len(ns) > 0
		}},
		{"idle hop p50, KV ledger / raw", 4, true, func(r *results) (float64, bool) {
			p50 := map[string]float64{}
			for _, f := range r.Latency {
				p50[f.Name] = median(f.P50)
			}
			return p50[nameKV] / p50[nameRaw], len(p50) > 0
		}},
		{"consumer's memory, many waiting / few", 1.3, true, func(r *results) (float64, bool) {
			if r.Memory == nil {
				return 0, false
			}
			return medianKB(r.Memory.ManyKB) / medianKB(r.Memory.FewKB), true
		}},
		{"two processes / one, partition ledger, 8 handlers that wait", 1.8, false, func(r *results) (float64, bool) {
			rate := map[int]float64{}
			for _, f := range r.Scale {
				if f.Handlers == fewHandlers {
					rate[f.Processes] = f.PerSecond
				}
			}
			return rate[2] / rate[1], len(rate) > 0
		}},
		{"partition ledger stands still, a process is told to stop, seconds", 1, true, stands(changeLeave)},
		{"partition ledger stands still, a process is killed, seconds", 6, true, stands(changeKill)},
		{"server's memory an event remembered, partition ledger, bytes", 40, true, remembers(func(f, raw rememberedFigure) int64 { return f.ServerHeap - raw.ServerHeap })},
		{"consumer's memory an event remembered, partition ledger, bytes", 16, true, remembers(func(f, _ rememberedFigure) int64 { return f.ConsumerHeap })},
		{"sagas a second, SQLite", 250, false, sagas(nameSQLite, func(f sagaFigure) []float64 { return f.PerSecond })},
		{"sagas a second, Postgres", 220, false, sagas(namePostgres, func(f sagaFigure) []float64 { return f.PerSecond })},
		{"saga p99, SQLite, ms", 5000, true, sagas(nameSQLite, func(f sagaFigure) []float64 { return f.P99 })},
		{"saga p99, Postgres, ms", 5000, true, sagas(namePostgres, func(f sagaFigure) []float64 { return f.P99 })},
		{"outbox drain, SQLite / raw publish", 0.5, false, drains(nameSQLite)},
		{"outbox drain, Postgres / raw publish", 0.5, false, drains(namePostgres)},
		{"commit to stream p50, change data capture, ms", 20, true, func(r *results) (float64, bool) {
			worst := -1.0
			for _, f := range r.Outbox {
				for _, l := range f.Latency {
					if l.WokenBy == nameCDC {
						worst = max(worst, l.P50/1000)
					}
				}
			}
			return worst, worst >= 0
		}},
		{"three processes idle after a breaker has opened, ms", 250, true, func(r *results) (float64, bool) {
			if r.Outage == nil {
				return 0, false
			}
			return median(r.Outage.Idle), true
		}},
		{"calls during an outage / threshold, in flight and probes", 1, true, func(r *results) (float64, bool) {
			if r.Outage == nil {
				return 0, false
			}
			return median(r.Outage.Calls) / float64(r.Outage.Allowed), true
		}},
	}
}

// hops measures the ratio of two variants' medians.
func hops(settingA, nameA, settingB, nameB string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		a, okA := r.hops(settingA, nameA)
		b, okB := r.hops(settingB, nameB)
		return a / b, okA && okB
	}
}

// sagas measures a database's orders, many at once.
// stands is how long an event stood still at a change, in seconds.
func stands(change string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		for _, f := range r.StandStill {
			if f.Ledger == string(ledger.Partition) && f.Change == change {
				return f.Worst.Seconds(), true
			}
		}
		return 0, false
	}
}

// remembers is what the partition ledger needs for each event, against the raw loop.
func remembers(bytes func(f, raw rememberedFigure) int64) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		for _, f := range r.Remembered {
			if f.Name == namePartition {
				return max(float64(bytes(f, r.Remembered[0]))/float64(f.Events), 0.1), true
			}
		}
		return 0, false
	}
}

func sagas(database string, of func(f sagaFigure) []float64) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		for _, f := range r.Saga {
			if f.Database == database && f.Concurrency == manyAtOnce {
				return median(of(f)), true
			}
		}
		return 0, false
	}
}

// drains measures a relay beside publishing the same messages.
func drains(database string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		for _, f := range r.Outbox {
			if f.Database == database {
				return median(f.Drain.Relay) / median(f.Drain.Raw), true
			}
		}
		return 0, false
	}
}

func (r *results) hops(setting, name string) (float64, bool) {
	for _, s := range r.Hop {
		for _, v := range s.Variants {
			if s.Setting == setting && v.Name == name {
				return v.Median, true
			}
		}
	}
	return 0, false
}

func judge(r *results) (verdicts []verdict) {
	for _, t := range targets() {
		v := verdict{Name: t.name, Bound: t.bound, AtMost: t.atMost}
		if measured, ok := t.measure(r); ok {
			v.Measured = &measured
			v.OK = measured >= t.bound
			if t.atMost {
				v.OK = measured <= t.bound
			}
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

func (b *bench) printTargets() error {
	if err := b.title("targets"); err != nil {
		return err
	}
	table := terminal.NewTable("", "", ">target", ">measured", "")
	for _, v := range b.results.Targets {
		bound, measured, outcome := "at least", "-", "not measured"
		if v.AtMost {
			bound = "at most"
		}
		if v.Measured != nil {
			measured, outcome = fmt.Sprintf("%.2f", *v.Measured), "missed"
			if v.OK {
				outcome = "ok"
			}
		}
		table.Row(v.Name, bound, fmt.Sprintf("%.2f", v.Bound), measured, outcome)
	}
	_, err := table.WriteTo(b.out)
	return err
}
