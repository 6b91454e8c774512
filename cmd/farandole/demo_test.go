package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/farandole/farandole/internal/demo"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/services/audit"
)

func TestDemo_json_is_the_contract(t *testing.T) {
	t.Parallel()
	got := farandole(t, "", "demo", "--orders", "10", "--seed", "3", "--faults", "none", "--json")
	if got.code != exitDone {
		t.Fatalf("%+v", got)
	}
	var doc map[string]any
	must(t, json.Unmarshal([]byte(got.out), &doc))
	for _, key := range []string{
		"orders", "confirmed", "cancelled", "unfinished", "dead_lettered", "replayed", "duplicates_injected",
		"duplicates_suppressed", "crashes_injected", "events", "elapsed_ms", "saga_latency_ms", "sagas_per_second", "audit",
	} {
		if _, there := doc[key]; !there {
			t.Errorf("%q is missing", key)
		}
	}
	latency, _ := doc["saga_latency_ms"].(map[string]any)
	verdict, _ := doc["audit"].(map[string]any)
	if latency["p50"] == nil || latency["p99"] == nil || verdict["ok"] != true || verdict["violations"] == nil || doc["orders"] != 10.0 {
		t.Errorf("%s", got.out)
	}
	if !strings.Contains(got.err, "placing") || strings.ContainsAny(got.err, "\x1b\r") {
		t.Errorf("progress without a terminal: %q", got.err)
	}
}

func TestDemo_takes_Postgres_only_by_flag(t *testing.T) {
	t.Parallel()
	got := farandole(t, "", "demo", "--database-url", "mysql://u:s3cret@h/d")
	if got.code != exitUsage || !strings.Contains(got.err, "postgres://") || strings.Contains(got.err, "s3cret") {
		t.Errorf("%+v", got)
	}
	got = farandole(t, "", "demo", "--orders", "5", "--faults", "none", "--json", "--database-url", pgtest.Database(t))
	if got.code != exitDone || !strings.Contains(got.out, `"ok":true`) {
		t.Errorf("%+v", got)
	}
}

func TestDemo_fails_when_the_audit_does(t *testing.T) {
	t.Parallel()
	violations := make([]audit.Violation, maxViolations+5)
	for i := range violations {
		violations[i] = audit.Violation{Invariant: audit.Money, Order: "ord-\x1b[2J", Expected: "one charge", Found: "2"}
	}
	for _, args := range []string{"", "--json"} {
		var root cli
		var out, stderr bytes.Buffer
		a := newApp(&root, streams{in: strings.NewReader(""), out: &out, err: &stderr})
		c := demoCmd{jsonFlag: jsonFlag{JSON: args != ""}}
		if code := report(&stderr, c.print(a, demo.Report{Audit: audit.Report{Violations: violations}})); code != exitFailed {
			t.Errorf("%q: exit %d", args, code)
		}
		assertHarmless(t, result{out: out.String(), err: stderr.String()})
		if args == "" && (!strings.Contains(out.String(), "audit FAILS: 25 violations") || !strings.Contains(out.String(), "… 5 more")) {
			t.Errorf("output %s", out.String())
		}
	}
}
