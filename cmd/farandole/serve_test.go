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
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/services/audit"
)

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = time.Minute

// logged is a stderr that a test can read while the program writes it.
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
	url   string
	admin string // URL
	nats  string
	// stop ends the context, as SIGTERM does, and returns the exit code and stderr.
	stop func() (int, string)
}

var readyLine = regexp.MustCompile(`ready: (http://\S+), admin (http://\S+), NATS (\S+)`)

// serve runs serve in the background until it says that it is ready.
func serve(t *testing.T, args ...string) served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stderr, ended := &logged{}, make(chan int, 1)
	go func() {
		args := append([]string{"serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
		ended <- run(ctx, args, streams{in: strings.NewReader(""), out: io.Discard, err: stderr})
	}()
	var s served
	s.stop = sync.OnceValues(func() (int, string) {
		cancel()
		return <-ended, stderr.String()
	})
	t.Cleanup(func() { s.stop() })
	bustest.Eventually(t, soon, func() error {
		m := readyLine.FindStringSubmatch(stderr.String())
		if m == nil {
			return fmt.Errorf("not ready: %s", stderr)
		}
		s.url, s.admin, s.nats = m[1], m[2], m[3]
		return nil
	})
	return s
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get waits for an answer. One of status 503 says to send the request again.
func get(t *testing.T, url string) (body string) {
	t.Helper()
	bustest.Eventually(t, soon, func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		must(t, err)
		resp, err := client.Do(req)
		must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		switch body = string(text); resp.StatusCode {
		case http.StatusOK:
			return nil
		case http.StatusServiceUnavailable:
			return fmt.Errorf("GET %s: %s %s", url, resp.Status, body)
		}
		t.Fatalf("GET %s: %s %s", url, resp.Status, body)
		return nil
	})
	return body
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
	bustest.Eventually(t, soon, func() error {
		if body := get(t, s.url+"/orders/"+id); !strings.Contains(body, `"status":"`+want+`"`) {
			return fmt.Errorf("order %s: %s", id, body)
		}
		return nil
	})
}

func TestServe_keeps_a_whole_system_over_restarts(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	args := []string{"all", "--embedded", "--store", store, "--nats-port", "0", "--no-sync-always"}
	s := serve(t, args...)
	good, poor := s.place(t, "k1", "alice"), s.place(t, "k2", "decline-bob")
	s.awaitStatus(t, good, "confirmed")
	s.awaitStatus(t, poor, "cancelled")
	for url, want := range map[string]string{
		s.url + "/healthz": "ok", s.url + "/readyz": `"inventory":"ok"`, s.url + "/metrics": `farandole_deliveries_total{consumer="payment"`,
		s.url + "/stock": "widget", s.admin + "/faults": `"poison":true`, s.admin + "/gateway/books": good, s.admin + "/readyz": `"order":"ok"`,
	} {
		if body := get(t, url); !strings.Contains(body, want) {
			t.Errorf("GET %s: %q is missing in %s", url, want, body)
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
	s.audit(t, filepath.Join(store, "order.db"), good, poor)
}

// audit waits until the audit finds no violation.
func (s served) audit(t *testing.T, target string, ids ...string) {
	t.Helper()
	db, err := database.Open(target)
	must(t, err)
	defer func() { must(t, db.Close()) }()
	b := bustest.Connect(t, bus.Config{URL: s.nats})
	bustest.Eventually(t, soon, func() error {
		r, err := audit.Run(t.Context(), b, db.DB, s.admin+"/gateway", ids...)
		if err == nil && !r.OK {
			err = fmt.Errorf("%v", r.Violations)
		}
		return err
	})
}

// serve creates the store's directory, also without the embedded server.
func TestServe_makes_its_store(t *testing.T) {
	t.Parallel()
	nats := bustest.StartServer(t, bustest.ServerConfig{}).URL()
	store := filepath.Join(t.TempDir(), "not", "there")
	if code, stderr := serve(t, "all", "--server", nats, "--store", store).stop(); code != exitDone {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// Two processes share a Postgres database: one runs all services, the other order.
func TestServe_on_Postgres(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	nats := bustest.StartServer(t, bustest.ServerConfig{}).URL()
	one := serve(t, "all", "--server", nats, "--database-url", target)
	two := serve(t, "order", "--server", nats, "--database-url", target)
	good, poor := one.place(t, "k1", "alice"), two.place(t, "k2", "decline-bob")
	for _, s := range []served{one, two} {
		s.awaitStatus(t, good, "confirmed")
		s.awaitStatus(t, poor, "cancelled")
		for _, id := range []string{good, poor} {
			if list := get(t, s.url+"/orders?limit=2"); !strings.Contains(list, id) {
				t.Errorf("%s is missing in %s", id, list)
			}
		}
		if body := get(t, s.url+"/metrics"); !strings.Contains(body, "farandole_outbox") {
			t.Errorf("no metrics of the outbox: %s", body)
		}
	}
	one.audit(t, target, good, poor)
}

func TestServe_fails_with_a_reason(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, taken.Close()) })
	s, store := newSystem(t), t.TempDir()
	foreign(t, s, event.Names{Prefix: s.Names().Prefix + "x"}.Root("events.order.>"))
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"no store", []string{"all", "--embedded"}, exitUsage, "--store"},
		{"store for nobody", []string{"inventory", "--store", "x"}, exitUsage, "--store"},
		{"no database", []string{"all"}, exitUsage, "--database-url"},
		{"database of another kind", []string{"order", "--database-url", "mysql://u:s3cret@h/d"}, exitUsage, "postgres://"},
		{
			"no database server",
			append([]string{"order", "--http", "127.0.0.1:0", "--wait", "5s", "--database-url", "postgres://u:s3cret@127.0.0.1:1/d"}, s.flags...),
			exitFailed, "order's database: no answer within",
		},
		{
			"store that cannot be",
			append([]string{"order", "--http", "127.0.0.1:0", "--store", os.DevNull}, s.flags...), exitFailed, "store",
		},
		{"no gateway", []string{"payment"}, exitUsage, "--gateway-url"},
		{"no such service", []string{"shipping"}, exitUsage, "shipping"},
		{"no service", nil, exitUsage, "service"},
		{"port taken", []string{"all", "--store", store, "--http", taken.Addr().String()}, exitFailed, "choose another --http"},
		{"no server", []string{"order", "--store", store, "--http", "127.0.0.1:0", "--server", "nats://127.0.0.1:1", "--wait", "50ms"}, exitFailed, "cannot connect"},
		{"lease too short", append([]string{"order", "--store", store, "--http", "127.0.0.1:0", "--lease", "1ms"}, s.flags...), exitFailed, "Lease"},
		{
			"subjects of another stream",
			[]string{"order", "--store", store, "--http", "127.0.0.1:0", "--server", s.flags[1], "--prefix", s.Names().Prefix + "x"},
			exitFailed, "FOREIGN",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := farandole(t, "", append([]string{"serve"}, tt.args...)...)
			if got.code != tt.want || !strings.Contains(got.err, tt.says) || strings.Contains(got.err, "s3cret") {
				t.Errorf("%+v, want %d saying %q", got, tt.want, tt.says)
			}
		})
	}
	must(t, s.JetStream().DeleteStream(t.Context(), "KV_"+s.Names().Bucket("payments"))) // made by "lease too short"
}

// If the database server is up and has no such database, serve fails at once.
func TestServe_waits_for_no_database_that_is_not_there(t *testing.T) {
	t.Parallel()
	target, err := url.Parse(pgtest.Database(t))
	must(t, err)
	target.Path += "_not"
	s := newSystem(t)
	got := farandole(t, "", append([]string{"serve", "order", "--http", "127.0.0.1:0", "--wait", "10m", "--database-url", target.String()}, s.flags...)...)
	if got.code != exitFailed || !strings.Contains(got.err, "does not exist") {
		t.Errorf("%+v", got)
	}
	must(t, s.JetStream().DeleteStream(t.Context(), "KV_"+s.Names().Bucket("payments")))
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
