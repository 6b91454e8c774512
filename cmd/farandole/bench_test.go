package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

func TestBench_json(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	before := s.contents(t)
	for _, ledger := range []string{"kv", "partition"} {
		got := s.run(t, "", "bench", "--events", "200", "--ledger", ledger, "--concurrency", "8", "--json")
		if got.code != exitDone {
			t.Fatalf("%s: %+v", ledger, got)
		}
		var doc map[string]any
		must(t, json.Unmarshal([]byte(got.out), &doc))
		for key, want := range map[string]any{"events": 200.0, "ledger": ledger, "concurrency": 8.0, "replicas": 1.0, "data_bytes": 256.0} {
			if doc[key] != want {
				t.Errorf("%s: %v, want %v", key, doc[key], want)
			}
		}
		for _, key := range []string{"hops_per_second", "published_per_second", "elapsed_ms"} {
			if number, _ := doc[key].(float64); number <= 0 {
				t.Errorf("%s: %v", key, doc[key])
			}
		}
		s.assertGone(t, got)
	}
	if after := s.contents(t); after != before {
		t.Errorf("the system's own streams: %q before, %q after", before, after)
	}
}

func TestBench_for_people(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	got := s.run(t, "", "bench", "--events", "50")
	if got.code != exitDone || !strings.Contains(got.out, "each with its outgoing event stored once") {
		t.Errorf("%+v", got)
	}
	assertHarmless(t, got)
}

func TestBench_refuses(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--events", "0"}, exitUsage, "--events"},
		{[]string{"--concurrency", "-1"}, exitUsage, "--concurrency"},
		{[]string{"--ledger", "paper"}, exitUsage, "ledger"},
		{[]string{"--replicas", "3", "--events", "1"}, exitFailed, "replicas need a cluster"},
	} {
		got := s.run(t, "", append([]string{"bench"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.err, tt.says) || got.out != "" {
			t.Errorf("%v: %+v", tt.args, got)
		}
		s.assertGone(t, got)
	}
}

// assertGone fails when the streams that bench told of are still there.
func (s system) assertGone(t *testing.T, got result) {
	t.Helper()
	_, told, found := strings.Cut(got.err, "in streams ")
	if !found {
		return // it did not come that far
	}
	prefix, _, _ := strings.Cut(told, "*")
	names := s.JetStream().StreamNames(t.Context())
	for name := range names.Name() {
		if strings.HasPrefix(strings.TrimPrefix(name, "KV_"), prefix) {
			t.Errorf("left behind: %s", name)
		}
	}
	must(t, names.Err())
}

// contents tells the state of the system's own streams.
func (s system) contents(t *testing.T) string {
	t.Helper()
	var states []jetstream.StreamState
	for _, name := range []string{s.Names().EventsStream(), s.Names().DLQStream(), "KV_" + s.Names().Bucket("dedup")} {
		stream, err := s.JetStream().Stream(t.Context(), name)
		must(t, err)
		states = append(states, stream.CachedInfo().State)
	}
	text, err := json.Marshal(states)
	must(t, err)
	return string(text)
}
