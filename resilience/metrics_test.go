package resilience

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// measured are the values of all series.
func measured(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func TestEveryPolicyIsMeasured(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	b, err := NewBreaker(BreakerConfig{Name: "gateway", Failures: 2, Metrics: r})
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, Config{
		Breaker: b, Metrics: r, Retry: RetryConfig{Retries: 1, BaseDelay: 1, MaxDelay: 1}, Timeout: 10 * time.Second,
		Rate: RateConfig{KeyPerSecond: 1000}, Bulkhead: BulkheadConfig{Concurrency: 1},
	})
	f := FallbackValue(g, 1)
	for range 2 {
		if _, err := f.Get(t.Context(), func(context.Context) (int, error) { return 0, errDown }); err != nil {
			t.Fatal(err)
		}
	}
	got := measured(t, r)
	for name, want := range map[string]float64{
		"farandole_breaker_state gateway open": 1, "farandole_breaker_state gateway closed": 0,
		"farandole_breaker_calls_total gateway failure": 2, "farandole_breaker_calls_total gateway rejected": 1,
		"farandole_breaker_opened_total gateway": 1, "farandole_breaker_running gateway": 0,
		"farandole_guard_attempts_total dependency failure": 2, "farandole_guard_rejected_total dependency breaker": 1,
		"farandole_guard_rejected_total dependency bulkhead": 0, "farandole_guard_retries_total dependency": 1,
		"farandole_guard_fallbacks_total dependency": 2, "farandole_guard_rate_keys dependency": 1,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, want %v", name, value, want)
		}
	}
	if _, err := NewBreaker(BreakerConfig{Name: "gateway", Metrics: r}); !errors.Is(err, ErrConfig) {
		t.Errorf("a second breaker of the name: %v", err)
	}
	if _, err := New(Config{Name: "dependency", Metrics: r}); !errors.Is(err, ErrConfig) {
		t.Errorf("a second guard of the name: %v", err)
	}
}

// The table of docs/resilience.md has every metric, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	b, err := NewBreaker(BreakerConfig{Name: "x", Metrics: r})
	if err != nil {
		t.Fatal(err)
	}
	newGuard(t, Config{Breaker: b, Metrics: r})
	page, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(farandole_(?:breaker|guard)_\\w+)").FindAllSubmatch(page, -1) {
		documented = append(documented, string(m[1]))
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	slices.Sort(documented)
	if !slices.Equal(documented, names) {
		t.Errorf("documented %v, measured %v", documented, names)
	}
}

func TestTransitionsAndRejectionsAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b, err := NewBreaker(BreakerConfig{Name: "gateway", Failures: 1, Probes: 1, Logger: zerolog.New(&out)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Allow()
	if err != nil {
		t.Fatal(err)
	}
	p.Done(Failure, fmt.Errorf("call: %w", &statusError{status: 503}))
	if call(b, Success) {
		t.Fatal("let through")
	}
	b.Open(1)
	calls(b, Success)
	want := []struct{ level, state, event, errorType string }{
		{"warn", "open", "failures", "*resilience.statusError"},
		{"debug", "open", "rejected", "*resilience.OpenError"},
		{"warn", "open", "forced", ""},
		{"info", "half_open", "waited", ""},
		{"info", "closed", "recovered", ""},
	}
	lines := json.NewDecoder(&out)
	for _, w := range want {
		var line map[string]any
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line["breaker"] != "gateway" || line["level"] != w.level || line["state"] != w.state || line["event"] != w.event || line["error_type"] != w.errorType {
			t.Errorf("%v, want %+v", line, w)
		}
		for _, key := range []string{keyLatency, keyFailures, keySuccesses, keyBackoff} {
			if _, ok := line[key].(float64); !ok {
				t.Errorf("%v has no %s", line, key)
			}
		}
	}
	if lines.More() {
		t.Error("more lines than changes")
	}
}
