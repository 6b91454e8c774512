package e2e_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/farandole/farandole/internal/testkit/pgtest"
)

// demoReport is what demo --json ends with: the outside contract.
type demoReport struct {
	Orders, Confirmed, Cancelled, Unfinished int
	DeadLettered                             int `json:"dead_lettered"`
	Replayed                                 int
	DuplicatesInjected                       int `json:"duplicates_injected"`
	DuplicatesSuppressed                     int `json:"duplicates_suppressed"`
	CrashesInjected                          int `json:"crashes_injected"`
	Events                                   int
	ElapsedMS                                int64 `json:"elapsed_ms"`
	SagaLatencyMS                            struct{ P50, P99 int64 }
	Audit                                    struct {
		OK         bool
		Violations []json.RawMessage
	}
}

// demo runs the demo and checks what holds for every run.
func demo(t *testing.T, orders int, args ...string) demoReport {
	t.Helper()
	r := run(t, append([]string{"demo", "--json", "--orders", fmt.Sprint(orders)}, args...)...)
	if r.code != 0 {
		t.Fatalf("demo %v: exit code %d\n%s\n%s", args, r.code, tail(r.stdout, 2000), tail(r.stderr, 4000))
	}
	var report demoReport
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("demo %v: stdout is not one JSON document: %v\n%s", args, err, tail(r.stdout, 2000))
	}
	if !report.Audit.OK || len(report.Audit.Violations) > 0 || report.Unfinished != 0 ||
		report.Orders != orders || report.Confirmed+report.Cancelled != orders {
		t.Fatalf("demo %v: %s", args, r.stdout)
	}
	return report
}

// Whoever reads the report finds all the keys of the contract.
func TestDemoReport(t *testing.T) {
	t.Parallel()
	r := run(t, "demo", "--orders", "20", "--json")
	if r.code != 0 || strings.Count(r.stdout, "\n") != 1 {
		t.Fatalf("exit code %d, stdout %q, stderr %s", r.code, r.stdout, r.stderr)
	}
	var report map[string]json.RawMessage
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	for _, key := range []string{
		"orders", "confirmed", "cancelled", "unfinished", "dead_lettered", "replayed", "duplicates_injected",
		"duplicates_suppressed", "crashes_injected", "events", "elapsed_ms", "saga_latency_ms", "sagas_per_second", "audit",
	} {
		if _, ok := report[key]; !ok {
			t.Errorf("key %q is missing: %s", key, r.stdout)
		}
	}
	for key, want := range map[string]string{"saga_latency_ms": "p50 p99", "audit": "ok violations"} {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(report[key], &object); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		for name := range strings.FieldsSeq(want) {
			if _, ok := object[name]; !ok {
				t.Errorf("%s has no %s: %s", key, name, report[key])
			}
		}
	}
}

// The worst trouble leaves the books right, with each ledger and each database; in the
// short form with the defaults alone, for the tests of internal/demo run the other two.
func TestDemoStorm(t *testing.T) {
	t.Parallel()
	seeds, orders := 1, 60
	if long() {
		seeds, orders = 20, 200
	}
	for name, flags := range map[string]func(testing.TB) []string{
		"KV ledger":        func(testing.TB) []string { return []string{"--ledger", "kv"} },
		"partition ledger": func(testing.TB) []string { return []string{"--ledger", "partition"} },
		"Postgres":         func(tb testing.TB) []string { tb.Helper(); return []string{"--database-url", pgtest.Database(tb)} },
	} {
		if !long() && name != "KV ledger" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				r := demo(t, orders, append(flags(t), "--faults", "storm", "--seed", fmt.Sprint(seed+1))...)
				if r.CrashesInjected == 0 || r.DuplicatesInjected == 0 || r.DeadLettered == 0 || r.Replayed == 0 {
					t.Errorf("seed %d: a storm without trouble: %+v", seed+1, r)
				}
				counted.storms.Add(1)
				counted.crashes.Add(int64(r.CrashesInjected))
				counted.orders.Add(int64(r.Orders))
				t.Logf("seed %d: %d confirmed, %d cancelled, %d crashes, %d ms", seed+1, r.Confirmed, r.Cancelled, r.CrashesInjected, r.ElapsedMS)
			}
		})
	}
}

// A variable that is meant for serve does not lead the demo to somebody's database.
func TestDemoIgnoresTheEnvironment(t *testing.T) {
	t.Parallel()
	r := runWith(t, []string{"DATABASE_URL=postgres://127.0.0.1:1/nowhere"}, "demo", "--orders", "5", "--faults", "none", "--json")
	if r.code != 0 {
		t.Errorf("exit code %d: %s", r.code, tail(r.stderr, 2000))
	}
}

// That a storm is, too, is a matter of internal/demo, which compares each order with the plan.
func TestDemoIsRepeatable(t *testing.T) {
	t.Parallel()
	one := demo(t, 40, "--seed", "7")
	two := demo(t, 40, "--seed", "7", "--concurrency", "4")
	if one.Confirmed != two.Confirmed || one.Cancelled != two.Cancelled {
		t.Errorf("seed 7 has two outcomes: %+v and %+v", one, two)
	}
}
