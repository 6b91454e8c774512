package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/services/audit"
)

// logged is a stderr that tests read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// served is a running serve.
type served struct {
	url  string
	nats string
	// stop sends what SIGTERM would, and returns the exit code and stderr.
	stop func() (int, string)
}

var readyLine = regexp.MustCompile(`ready: (http://\S+), NATS (\S+)`)

// serve runs serve in the background until it says that it is ready.
func serve(t *testing.T, args ...string) served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stderr, ended := &logged{}, make(chan int, 1)
	go func() {
		args := append([]string{"serve", "--http", "127.0.0.1:0"}, args...)
		ended <- run(ctx, args, streams{in: strings.NewReader(""), out: io.Discard, err: stderr})
	}()
	var s served
	s.stop = sync.OnceValues(func() (int, string) {
		cancel()
		return <-ended, stderr.String()
	})
	t.Cleanup(func() { s.stop() })
	bustest.Eventually(t, 20*time.Second, func() error {
		m := readyLine.FindStringSubmatch(stderr.String())
		if m == nil {
			return fmt.Errorf("not ready: %s", stderr)
		}
		s.url, s.nats = m[1], m[2]
		return nil
	})
	return s
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (s served) get(t *testing.T, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	must(t, err)
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %s", path, resp.Status, body)
	}
	return string(body)
}

func (s served) place(t *testing.T, key, customer string) (id string) {
	t.Helper()
	body := fmt.Sprintf(`{"customer_id":%q,"currency":"EUR","items":[{"sku":"widget","quantity":1}]}`, customer)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/orders", strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	var answer struct {
		OrderID string `json:"order_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusAccepted {
		t.Fatalf("POST /orders: %s, %v", resp.Status, err)
	}
	return answer.OrderID
}

func (s served) awaitStatus(t *testing.T, id, want string) {
	t.Helper()
	bustest.Eventually(t, 15*time.Second, func() error {
		if body := s.get(t, "/orders/"+id); !strings.Contains(body, `"status":"`+want+`"`) {
			return fmt.Errorf("order %s: %s", id, body)
		}
		return nil
	})
}

func TestServe_keeps_a_whole_system_over_restarts(t *testing.T) {
	t.Parallel()
	args := []string{"all", "--embedded", "--store", t.TempDir(), "--nats-port", "0", "--no-sync-always"}
	s := serve(t, args...)
	good, poor := s.place(t, "k1", "alice"), s.place(t, "k2", "decline-bob")
	s.awaitStatus(t, good, "confirmed")
	s.awaitStatus(t, poor, "cancelled")
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": `"inventory":"ok"`, "/metrics": `farandole_deliveries_total{consumer="payment"`,
		"/faults": `"poison":true`, "/stock": "widget", "/gateway/books": good,
	} {
		if body := s.get(t, path); !strings.Contains(body, want) {
			t.Errorf("GET %s: %q is missing in %s", path, want, body)
		}
	}
	if code, stderr := s.stop(); code != exitDone {
		t.Fatalf("exit %d: %s", code, stderr)
	}

	s = serve(t, args...)
	if id := s.place(t, "k1", "alice"); id != good {
		t.Errorf("the same order is %s after the restart, was %s", id, good)
	}
	s.awaitStatus(t, good, "confirmed")
	b := bustest.Connect(t, bus.Config{URL: s.nats})
	bustest.Eventually(t, 15*time.Second, func() error {
		r, err := audit.Run(t.Context(), b, s.url+"/gateway", good, poor)
		if err == nil && !r.OK {
			err = fmt.Errorf("%v", r.Violations)
		}
		return err
	})
}

func TestServe_fails_with_a_reason(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, taken.Close()) })
	s := newSystem(t)
	foreign(t, s, bus.Names{Prefix: s.Names().Prefix + "x"}.Root("events.order.>"))
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"no store", []string{"all", "--embedded"}, exitUsage, "--store"},
		{"store without a server", []string{"all", "--store", "x"}, exitUsage, "--embedded"},
		{"no gateway", []string{"payment"}, exitUsage, "--gateway-url"},
		{"no such service", []string{"shipping"}, exitUsage, "shipping"},
		{"no service", nil, exitUsage, "service"},
		{"port taken", []string{"all", "--http", taken.Addr().String()}, exitFailed, "choose another --http"},
		{"no server", []string{"order", "--http", "127.0.0.1:0", "--server", "nats://127.0.0.1:1", "--wait", "50ms"}, exitFailed, "cannot connect"},
		{"lease too short", append([]string{"order", "--http", "127.0.0.1:0", "--lease", "1ms"}, s.flags...), exitFailed, "Lease"},
		{
			"subjects of another stream",
			[]string{"order", "--http", "127.0.0.1:0", "--server", s.flags[1], "--prefix", s.Names().Prefix + "x"},
			exitFailed, "FOREIGN",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := farandole(t, "", append([]string{"serve"}, tt.args...)...)
			if got.code != tt.want || !strings.Contains(got.err, tt.says) {
				t.Errorf("%+v, want %d saying %q", got, tt.want, tt.says)
			}
		})
	}
	for _, name := range []string{"orders", "payments"} { // made by "lease too short"
		must(t, s.JetStream().DeleteStream(t.Context(), "KV_"+s.Names().Bucket(name)))
	}
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sick" {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "no \x1bledger")
		}
	}))
	defer server.Close()
	if got := farandole(t, "", "healthcheck", server.URL); got.code != exitDone || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
	if got := farandole(t, "", "healthcheck", server.URL+"/sick"); got.code != exitFailed || !strings.Contains(got.err, `no \u001bledger`) {
		t.Errorf("%+v", got)
	}
	if got := farandole(t, "", "healthcheck", "http://127.0.0.1:1"); got.code != exitFailed {
		t.Errorf("%+v", got)
	}
}
