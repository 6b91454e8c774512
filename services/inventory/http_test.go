package inventory

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

func get(t *testing.T, s *Service, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return w
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()}})
	s, err := New(b, Config{Stock: map[string]int64{"widget": 30, "anvil": 2}})
	if err != nil {
		t.Fatal(err)
	}
	if w := get(t, s, "/stock"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Content-Type") != "application/problem+json" ||
		strings.Contains(w.Body.String(), "EVENTS") {
		t.Errorf("before Run: %d %s", w.Code, w.Body)
	}

	bustest.Provision(t, b, topology.Config{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	bustest.Eventually(t, soon, s.Health)
	var stock []Stock
	if w := get(t, s, "/stock"); json.Unmarshal(w.Body.Bytes(), &stock) != nil || len(stock) != 2 ||
		stock[0].SKU != "anvil" || stock[1].SKU != "widget" || stock[1].Available != 30 || stock[1].Initial != 30 {
		t.Errorf("/stock: %d %s", w.Code, w.Body)
	}
	const document = `{"sku":"anvil","initial":2,"available":2,"held":0,"reserved":0}`
	if w := get(t, s, "/stock"); !strings.Contains(w.Body.String(), document) {
		t.Errorf("/stock: %s, want %s in it", w.Body, document)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
