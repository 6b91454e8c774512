package demo

import (
	"time"

	"github.com/farandole/farandole/services/audit"
)

// Report is how a run ended. Its JSON is the outside contract.
type Report struct {
	Orders     int `json:"orders"`
	Confirmed  int `json:"confirmed"`
	Cancelled  int `json:"cancelled"`
	Unfinished int `json:"unfinished"`
	// DeadLettered letters were either Replayed, or Kept because nothing will
	// ever make them right.
	DeadLettered int `json:"dead_lettered"`
	Replayed     int `json:"replayed"`
	Kept         int `json:"kept"`
	// DuplicatesInjected were dropped by the server or stored a second time;
	// suppressed are those that had no second effect.
	DuplicatesInjected   int     `json:"duplicates_injected"`
	DuplicatesSuppressed int     `json:"duplicates_suppressed"`
	CrashesInjected      int     `json:"crashes_injected"`
	Events               int     `json:"events"`
	ElapsedMS            int64   `json:"elapsed_ms"`
	SagaLatencyMS        Latency `json:"saga_latency_ms"`
	// SagasPerSecond are the orders that ended, by the time from the first one's
	// placing until nothing was left to do.
	SagasPerSecond float64      `json:"sagas_per_second"`
	Seed           uint64       `json:"seed"`
	Faults         Faults       `json:"faults"`
	Audit          audit.Report `json:"audit"`
	// Outcomes is each order's final status in the order of the plan.
	Outcomes []string `json:"-"`
}

// Latency is how long orders took from placed to final, in milliseconds.
type Latency struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
}

// latencyOf takes ascending durations.
func latencyOf(sorted []time.Duration) Latency {
	if len(sorted) == 0 {
		return Latency{}
	}
	at := func(percent int) int64 { return sorted[(len(sorted)-1)*percent/100].Milliseconds() }
	return Latency{P50: at(50), P99: at(99)}
}
