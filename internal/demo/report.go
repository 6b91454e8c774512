package demo

import (
	"time"

	"github.com/farandole/farandole/services/audit"
	"github.com/farandole/farandole/services/payment/gateway"
)

// Report tells how a run ended. Its JSON is part of docs/contract.md.
type Report struct {
	Orders     int `json:"orders"`
	Confirmed  int `json:"confirmed"`
	Cancelled  int `json:"cancelled"`
	Unfinished int `json:"unfinished"`
	// DeadLettered is how many events became dead letters: Replayed of them were
	// handled afterwards, Kept are left, because no service can ever handle them.
	DeadLettered int `json:"dead_lettered"`
	Replayed     int `json:"replayed"`
	Kept         int `json:"kept"`
	// DuplicatesInjected is how many events were published a second time,
	// DuplicatesSuppressed how many of these had no second effect: the server
	// dropped them, or the consumers' ledgers did.
	DuplicatesInjected   int     `json:"duplicates_injected"`
	DuplicatesSuppressed int     `json:"duplicates_suppressed"`
	CrashesInjected      int     `json:"crashes_injected"`
	Events               int     `json:"events"`
	ElapsedMS            int64   `json:"elapsed_ms"`
	SagaLatencyMS        Latency `json:"saga_latency_ms"`
	// Injected is what of the latency was injected.
	Injected Injected `json:"injected"`
	// SagasPerSecond is how many orders became final, divided by the time from the
	// first request until no service had anything left to do.
	SagasPerSecond float64      `json:"sagas_per_second"`
	Seed           uint64       `json:"seed"`
	Faults         Faults       `json:"faults"`
	Audit          audit.Report `json:"audit"`
	// Outcomes is the final status of each order, in the order of the plan.
	Outcomes []string `json:"-"`
}

// Latency is how long orders took from placed to final, in milliseconds.
type Latency struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
}

// Injected is what was done on purpose that makes orders take longer.
type Injected struct {
	OutageMS   int64   `json:"outage_ms"`   // for how long the gateway was down
	Flaky      float64 `json:"flaky"`       // the share of calls to the gateway that failed
	SlowOrders int     `json:"slow_orders"` // for which the gateway takes SlowMS
	SlowMS     int64   `json:"slow_ms"`
}

func (r *run) injected(orders []placedOrder) Injected {
	i := Injected{OutageMS: r.down.Load(), Flaky: r.dose.flaky}
	for _, o := range orders {
		if o.kind == slow {
			i.SlowOrders++
			i.SlowMS = gateway.SlowFor.Milliseconds()
		}
	}
	return i
}

// latencyOf takes ascending durations.
func latencyOf(sorted []time.Duration) Latency {
	if len(sorted) == 0 {
		return Latency{}
	}
	at := func(percent int) int64 { return sorted[(len(sorted)-1)*percent/100].Milliseconds() }
	return Latency{P50: at(50), P99: at(99)}
}
