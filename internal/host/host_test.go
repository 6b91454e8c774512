package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "no ledger") {
		t.Errorf("%d %s", code, body)
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
