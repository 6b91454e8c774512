package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

func get(t *testing.T, s *Service, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return w
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s, err := New(b, Config{Stock: map[string]int64{"widget": 30, "anvil": 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Run without the bucket: %v", err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/stock": 503, "/metrics": 200} {
		if w := get(t, s, path); w.Code != want || want == 503 && w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("before Run: %s: %d %s", path, w.Code, w.Body)
		}
	}

	bustest.Provision(t, b, bus.TopologyConfig{Buckets: []string{Bucket}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	bustest.Eventually(t, 20*time.Second, s.Health)
	for _, path := range []string{"/healthz", "/readyz"} {
		if w := get(t, s, path); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := get(t, s, "/metrics"); !strings.Contains(w.Body.String(), `farandole_healthy{consumer="inventory"} 1`) {
		t.Errorf("/metrics: %d %s", w.Code, w.Body)
	}
	var stock []Stock
	if w := get(t, s, "/stock"); json.Unmarshal(w.Body.Bytes(), &stock) != nil || len(stock) != 2 ||
		stock[0].SKU != "anvil" || stock[1].SKU != "widget" || stock[1].Available != 30 || stock[1].Initial != 30 {
		t.Errorf("/stock: %d %s", w.Code, w.Body)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A run that was cancelled, because another has taken its event over, holds nothing more.
func TestCancelledRunChangesNothing(t *testing.T) {
	t.Parallel()
	m := newMemory(map[string]int64{"widget": 10})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInjected)
	err := new(desk).do(ctx, m, "widget", func(x Stock) (Stock, bool) { return x.hold("ord-1", 1, 1) })
	if !errors.Is(err, errInjected) || m.calls != 0 {
		t.Fatalf("%v after %d calls", err, m.calls)
	}
}
