package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 60 * time.Second

// untilDone is a part that runs until it is stopped.
func untilDone(name string) Part {
	return Part{Name: name, Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// start runs a host in the background and returns how to stop it and get its error.
func start(t *testing.T, cfg Config) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(cfg).Run(ctx) }()
	stop = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(soon):
			t.Error("host did not stop")
			return nil
		}
	}
	t.Cleanup(func() { stop() }) //nolint:errcheck // tests that care have asked
	return stop
}

func TestHost_answers_for_all_parts(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total"}))
	order, gateway := untilDone("order"), Part{Name: "gateway"}
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	order.Routes = map[string]http.Handler{"/": echo, "/stock": echo}
	gateway.Routes = map[string]http.Handler{"/gateway/": echo}
	l := listen(t)
	url := "http://" + l.Addr().String()
	ready := make(chan struct{})
	stop := start(t, Config{Parts: []Part{order, gateway}, Listener: l, Metrics: metrics, OnReady: func() { close(ready) }})
	<-ready
	for path, want := range map[string]string{
		"/orders/7": "/orders/7", "/gateway/books": "/books", "/stock": "/stock",
		"/healthz": `{"status":"ok"}`, "/readyz": `{"status":"ready","parts":{"gateway":"ok","order":"ok"}}`,
	} {
		if code, body := get(t, url+path); code != 200 || strings.TrimSpace(body) != want {
			t.Errorf("GET %s: %d %s, want %s", path, code, body, want)
		}
	}
	if _, body := get(t, url+"/metrics"); !strings.Contains(body, "x_total 0") {
		t.Errorf("metrics: %s", body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestHost_is_not_ready_while_a_part_is_not(t *testing.T) {
	t.Parallel()
	part := untilDone("payment")
	part.Ready = func() error { return errors.New("no ledger") }
	l := listen(t)
	start(t, Config{Parts: []Part{part}, Listener: l, OnReady: func() { t.Error("ready") }})
	code, body := get(t, "http://"+l.Addr().String()+"/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, `"payment":"not ready"`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestHost_tells_only_operators_why_a_part_is_not_ready(t *testing.T) {
	t.Parallel()
	part := untilDone("order")
	part.Ready = func() error { return errors.New("dial user=ann database=shop") }
	part.Admin = map[string]http.Handler{"/faults": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	public, admin := listen(t), listen(t)
	var log bytes.Buffer
	stop := start(t, Config{Parts: []Part{part}, Listener: public, Admin: admin, Logger: zerolog.New(&log)})
	for range 3 {
		if code, body := get(t, "http://"+public.Addr().String()+"/readyz"); code != http.StatusServiceUnavailable || strings.Contains(body, "ann") {
			t.Errorf("public: %d %s", code, body)
		}
	}
	if code, body := get(t, "http://"+admin.Addr().String()+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "user=ann") {
		t.Errorf("admin: %d %s", code, body)
	}
	for l, want := range map[net.Listener]int{public: http.StatusNotFound, admin: http.StatusOK} {
		if code, _ := get(t, "http://"+l.Addr().String()+"/faults"); code != want {
			t.Errorf("fault switch: %d, want %d", code, want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "user=ann"); n != 1 {
		t.Errorf("the log tells it %d times: %s", n, log.String())
	}
}

func TestHost_refuses_what_foreign_pages_send(t *testing.T) {
	t.Parallel()
	var changed atomic.Int64
	part := untilDone("order")
	part.Routes = map[string]http.Handler{"/orders": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { changed.Add(1) })}
	l := listen(t)
	start(t, Config{Parts: []Part{part}, Listener: l, Hosts: []string{"shop.example"}})
	for _, tt := range []struct {
		name, method, host string
		header             http.Header
		want               int
	}{
		{"no browser", http.MethodPost, "", nil, 200},
		{"own page", http.MethodPost, "", http.Header{"Sec-Fetch-Site": {"same-origin"}}, 200},
		{"foreign page", http.MethodPost, "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		{"foreign page in an old browser", http.MethodPost, "", http.Header{"Origin": {"https://evil.example"}}, 403},
		{"foreign page reads", http.MethodGet, "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 200},
		{"name that resolves to loopback", http.MethodPost, "evil.example:8080", nil, 421},
		{"the same, reading", http.MethodGet, "evil.example", nil, 421},
		{"private address", http.MethodGet, "10.0.0.1", nil, 421},
		{"localhost", http.MethodGet, "localhost:8080", nil, 200},
		{"loopback IPv6", http.MethodGet, "[::1]:8080", nil, 200},
		{"allowed name", http.MethodPost, "Shop.example", nil, 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+l.Addr().String()+"/orders", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host, req.Close = tt.host, true
		for name, values := range tt.header {
			req.Header[name] = values
		}
		before := changed.Load()
		resp, err := (&http.Client{Timeout: soon}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != tt.want || (changed.Load() > before) != (tt.want == 200) {
			t.Errorf("%s: %d, %d calls", tt.name, resp.StatusCode, changed.Load()-before)
		}
	}
}

func TestProtect_lets_any_name_in_where_others_can_reach_it(t *testing.T) {
	t.Parallel()
	h := protect(http.NotFoundHandler(), &net.TCPAddr{IP: net.IPv4zero, Port: 80}, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://shop.example/", http.NoBody))
	if w.Code != http.StatusNotFound {
		t.Errorf("%d", w.Code)
	}
}

func TestHost_ends_with_the_reason_when_a_part_dies(t *testing.T) {
	t.Parallel()
	reason := errors.New("stream has wrong limits")
	stopped := make(chan struct{})
	survivor := Part{Name: "order", Run: func(ctx context.Context) error { <-ctx.Done(); close(stopped); return nil }}
	dying := Part{Name: "payment", Run: func(context.Context) error { return reason }}
	err := New(Config{Parts: []Part{survivor, dying}, Listener: listen(t)}).Run(t.Context())
	if !errors.Is(err, ErrPart) || !errors.Is(err, reason) || !strings.Contains(err.Error(), "payment") {
		t.Errorf("error %v", err)
	}
	<-stopped
}

func TestHost_lets_requests_finish_before_parts_stop(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	part := untilDone("order")
	running := make(chan struct{})
	part.Run = func(ctx context.Context) error { <-ctx.Done(); close(running); return nil }
	part.Routes = map[string]http.Handler{"/": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-release
		select {
		case <-running:
			w.WriteHeader(http.StatusInternalServerError)
		default:
		}
	})}
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	h := New(Config{Parts: []Part{part}, Listener: l})
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	code := make(chan int, 1)
	go func() {
		c, _ := get(t, "http://"+l.Addr().String()+"/")
		code <- c
	}()
	<-began
	cancel()
	for !h.stopping.Load() {
		select {
		case <-t.Context().Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
	close(release)
	if c := <-code; c != http.StatusOK {
		t.Errorf("request ended with %d", c)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestHost_answers_unknown_paths_and_methods_with_problem_documents(t *testing.T) {
	t.Parallel()
	h := New(Config{Parts: []Part{{Name: "order"}}})
	for name, tt := range map[string]struct {
		handler      http.Handler
		method, path string
		status       int
	}{
		"path":       {h.Handler(), http.MethodGet, "/nowhere", http.StatusNotFound},
		"method":     {h.Handler(), http.MethodPost, "/healthz", http.StatusMethodNotAllowed},
		"admin path": {h.AdminHandler(), http.MethodGet, "/nowhere", http.StatusNotFound},
	} {
		w := httptest.NewRecorder()
		tt.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
		if w.Code != tt.status || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
	}
}
