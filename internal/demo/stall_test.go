package demo

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestDemo_gives_up_when_nothing_happens_any_more(t *testing.T) {
	t.Parallel()
	cfg := Config{Orders: 5, Seed: 1, Faults: None, Patience: time.Second}.withDefaults()
	s, err := startSystem(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	shop := newClient(s.shops, cfg.Concurrency)
	defer shop.close()
	r := newRun(s, time.Now())
	place := func(seed uint64) {
		t.Helper()
		if _, err := placeAll(t.Context(), shop, plan(cfg.Orders, seed, cfg.Faults), cfg, &r.placed); err != nil {
			t.Fatal(err)
		}
	}
	place(1)
	if err := awaitRest(t.Context(), s.bus, s.store.Database); err != nil {
		t.Fatal(err)
	}
	s.supervisors[2].kill() // inventory: no order gets to its end
	place(2)
	if err := r.settle(t.Context()); !errors.Is(err, errRestless) || !errors.Is(err, errStalled) {
		t.Errorf("error %v", err)
	}
}

func TestDemo_goes_on_while_something_happens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &run{system: &system{cfg: Config{Patience: 3 * time.Second}}, watcher: &watcher{}}
		ctx, cancel := r.untilStalled(t.Context())
		defer cancel()
		for i := range 20 {
			<-time.After(2 * time.Second)
			if i%2 == 0 {
				r.placed.Add(1)
				continue
			}
			r.watcher.mu.Lock()
			r.watcher.events++
			r.watcher.mu.Unlock()
		}
		if err := context.Cause(ctx); err != nil {
			t.Errorf("given up while something happens: %v", err)
		}
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, errStalled) {
			t.Errorf("given up for %v", err)
		}
	})
}

func TestClient_comes_again_when_the_service_says(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	var first, second time.Time
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if tries.Add(1) == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		second = time.Now()
		w.WriteHeader(http.StatusAccepted)
		if _, err := strings.NewReader(`{"order_id":"ord-1"}`).WriteTo(w); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	c := newClient([]string{server.URL}, 1)
	defer c.close()
	id, err := c.place(t.Context(), plannedOrder{key: "k"})
	if err != nil || id != "ord-1" || tries.Load() != 2 {
		t.Fatalf("%s after %d tries: %v", id, tries.Load(), err)
	}
	if waited := second.Sub(first); waited < time.Second {
		t.Errorf("it came again after %v", waited)
	}
}
