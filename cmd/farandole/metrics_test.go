package main

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/status"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/resilience"
)

// root is the repository, seen from here.
const root = "../.."

// metricsSoon is how long a test waits for what has to happen, on a slow machine.
const metricsSoon = 30 * time.Second

// metricsOf are the names of all metrics of a system in which everything was used.
func metricsOf(t *testing.T) map[string]bool {
	t.Helper()
	s := stored(t)
	reg := prometheus.NewRegistry()
	must(t, reg.Register(status.NewCollector(s.Bus)))
	r := consumer.NewRegistry()
	consumer.HandleEvent(r, "order.placed.v1", func(context.Context, event.Event) (consumer.Step, error) {
		return consumer.Step{}, consumer.Permanent(os.ErrInvalid)
	})
	c, err := consumer.New(s.Bus, r, consumer.Config{Name: "payment", Metrics: reg})
	must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		stop()
		must(t, <-ended)
	}()
	_, err = s.Publish(t.Context(), s.seal(t, event.Draft{Type: "order.placed.v1", Key: "ord-1"}))
	must(t, err)
	bustest.Eventually(t, metricsSoon, func() bool { return c.Stats().Parked == 1 })
	if got := s.run(t, "", "dlq", "replay", "--all"); got.code != exitDone {
		t.Fatalf("replay: %+v", got)
	}
	bustest.Eventually(t, metricsSoon, func() bool { return c.Stats().Parked == 2 })
	breaker, err := resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway", Metrics: reg})
	must(t, err)
	_, err = resilience.New(resilience.Config{Name: "gateway", Breaker: breaker, Metrics: reg})
	must(t, err)
	_, err = outbox.NewRelay(s.outbox, s.Bus, outbox.RelayConfig{Metrics: reg})
	must(t, err)
	must(t, limitLetters(t, s.system))
	families, err := reg.Gather()
	must(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	return names
}

// limitLetters gives the stream of dead letters a limit.
func limitLetters(t *testing.T, s system) error {
	t.Helper()
	stream, err := s.JetStream().Stream(t.Context(), s.Names().DLQStream())
	must(t, err)
	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = 1 << 20
	_, err = s.JetStream().UpdateStream(t.Context(), cfg)
	return err
}

// usedBy are the names of Farandole's metrics in a query, histograms without their ending.
func usedBy(query string) (names []string) {
	for _, name := range regexp.MustCompile(`farandole_[a-z_]+`).FindAllString(query, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		names = append(names, name)
	}
	return names
}

func TestAlertsAndDashboardUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	exist := metricsOf(t)
	exist["farandole_unhandled_events"] = true // there only while a type has no handler: package consumer tests that
	used := map[string]bool{}
	check := func(where, query string) {
		t.Helper()
		names := usedBy(query)
		if len(names) == 0 {
			t.Errorf("%s asks for no metric: %q", where, query)
		}
		for _, name := range names {
			used[name] = true
			if !exist[name] {
				t.Errorf("%s asks for %s, which no process has", where, name)
			}
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Expr        string
				For         string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "prometheus", "alerts.yml"))
	must(t, err)
	must(t, yaml.Unmarshal(text, &rules))
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	must(t, err)
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			check("alert "+r.Alert, r.Expr)
			if !strings.Contains(string(page), r.Alert) {
				t.Errorf("docs/operations.md does not say what to do about %s", r.Alert)
			}
			if r.Alert == "" || r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
				t.Errorf("alert %q lacks a name, summary or severity", r.Alert)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	text, err = os.ReadFile(filepath.Join(root, "deploy", "grafana", "farandole.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			check("panel "+p.Title, target.Expr)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %s asks for nothing", p.Title)
		}
	}
	if n < 10 || len(dashboard.Panels) < 10 || len(used) < 15 {
		t.Errorf("%d alerts, %d panels, %d metrics: something was not read", n, len(dashboard.Panels), len(used))
	}
}

func TestTheTableOfMetricsIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "observability.md"))
	must(t, err)
	table := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| `farandole_") {
			for _, name := range usedBy(cell) {
				table[name] = true
			}
		}
	}
	inCode := metricsInCode(t)
	for _, name := range slices.Sorted(maps.Keys(inCode)) {
		if !table[name] {
			t.Errorf("docs/observability.md does not list %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if !inCode[name] {
			t.Errorf("docs/observability.md lists %s, which is in no package", name)
		}
	}
	for name := range metricsOf(t) {
		if !table[name] {
			t.Errorf("docs/observability.md does not list %s", name)
		}
	}
}

// metricsInCode are the names that the packages mention.
func metricsInCode(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`"(farandole_[a-z_]+)"`).FindAllStringSubmatch(string(code), -1) {
			names[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`= desc\("([a-z_]+)"`).FindAllStringSubmatch(string(code), -1) {
			names["farandole_"+m[1]] = true
		}
		return err
	}))
	delete(names, "farandole_") // what the others begin with
	return names
}

func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	durable(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, say := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, append([]string{"metrics", "--http", "127.0.0.1:0"}, s.flags...), streams{in: strings.NewReader(""), out: io.Discard, err: say})
		say.CloseWithError(io.EOF)
		ended <- code
	}()
	line := make([]byte, 200)
	n, err := said.Read(line)
	must(t, err)
	url := regexp.MustCompile(`http://\S+/metrics`).FindString(string(line[:n]))
	go io.Copy(io.Discard, said) //nolint:errcheck // nobody asks
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	for _, want := range []string{
		"farandole_status_up 1", `farandole_consumer_lag_events{consumer="payment"} 2`, `farandole_consumer_unattended{consumer="payment"} 1`,
		`farandole_consumer_backlog_events{consumer="payment",type="order.placed.v1"} 2`, `farandole_consumer_backlog_events{consumer="payment",type="order.cancelled.v1"} 0`,
		`farandole_stream_replicas_behind{stream="` + s.Names().EventsStream() + `"} 0`,
	} {
		if !strings.Contains(string(body), want+"\n") {
			t.Errorf("%q is missing in\n%s", want, body)
		}
	}
	cancel()
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d", code)
	}
}
