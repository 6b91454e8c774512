package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// within is how long a test waits for what has to happen.
const within = 60 * time.Second

// dial makes a client of a receiver at a URL.
func dial(t *testing.T, rawURL string, change func(*Config)) *client {
	t.Helper()
	cfg := valid()
	cfg.URL, cfg.Timeout = rawURL, within
	if change != nil {
		change(&cfg)
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.withDefaults()
	guard, err := newGuard(cfg, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(u, guard, cfg)
	t.Cleanup(c.base.CloseIdleConnections)
	return c
}

// listen starts a receiver.
func listen(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func hello() message { return message{header: http.Header{"X-Tenant": {"7"}}, body: []byte("hello")} }

func TestPostIsOneRequest(t *testing.T) {
	t.Parallel()
	var got string
	s := listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got = fmt.Sprintln(r.Method, r.URL, r.ContentLength, r.Header["X-Tenant"], string(body), err, r.Header["Accept-Encoding"])
		w.Header().Set("X-Answer", "yes")
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, "thanks")
	})
	a, err := dial(t, s.URL+"/hook?a=b", nil).post(t.Context(), hello())
	if err != nil || a.status != http.StatusAccepted || string(a.body) != "thanks" || a.header.Get("X-Answer") != "yes" {
		t.Errorf("%+v, %v", a, err)
	}
	if want := "POST /hook?a=b 5 [7] hello <nil> []\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, strings.Repeat("x", maxTold+1)) // more than is told
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	c := dial(t, s.URL, nil)
	for range 5 {
		if a, err := c.post(t.Context(), hello()); err != nil || len(a.body) != maxTold {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		cut := make(chan struct{})
		s := listen(t, func(w http.ResponseWriter, r *http.Request) {
			defer close(cut)
			w.WriteHeader(status)
			for block := []byte(strings.Repeat("x", 1<<10)); r.Context().Err() == nil; { // for ever
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		})
		a, err := dial(t, s.URL, nil).post(t.Context(), hello())
		if err != nil || a.status != status || len(a.body) != maxTold {
			t.Errorf("%d: %d, %d bytes, %v", status, a.status, len(a.body), err)
		}
		<-cut // the connection was given up, not read to an end that never comes
	}
	s := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 100 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
		}
	})
	if a, err := dial(t, s.URL, nil).post(t.Context(), hello()); !errors.Is(err, ErrReceiver) {
		t.Errorf("100 KiB of headers: %+v, %v", a.status, err)
	}
}

// The status is the answer, whatever becomes of the body after it.
func TestABodyThatBreaksOffChangesNothing(t *testing.T) {
	t.Parallel()
	s := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
		fmt.Fprint(w, "than")
	})
	if a, err := dial(t, s.URL, nil).post(t.Context(), hello()); err != nil || a.status != http.StatusOK || string(a.body) != "than" {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	s := listen(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" { // it answers, and then never ends
			w.WriteHeader(http.StatusNoContent + 2)
			w.(http.Flusher).Flush()
		}
		<-done
	})
	t.Cleanup(func() { close(done) })
	short := func(c *Config) { c.Timeout = 50 * time.Millisecond }
	if _, err := dial(t, s.URL, short).post(t.Context(), hello()); !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrReceiver) {
		t.Errorf("no answer: %v", err)
	}
	patient := func(c *Config) { c.Timeout = 2 * time.Second } // its beginning arrives within that
	if a, err := dial(t, s.URL+"/body", patient).post(t.Context(), hello()); err != nil || a.status != 206 {
		t.Errorf("no end: %+v, %v", a, err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() }) //nolint:errcheck // a test need not hear it
	if _, err := dial(t, "https://"+silent.Addr().String(), short).post(t.Context(), hello()); !errors.Is(err, ErrTimeout) {
		t.Errorf("no handshake: %v", err)
	}
	stop := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := dial(t, s.URL, nil).post(ctx, hello()); !errors.Is(err, stop) || errors.Is(err, ErrTimeout) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := listen(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	var home *httptest.Server
	home = listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "hello" || r.Method != http.MethodPost || r.Header.Get("X-Tenant") != "7" {
			t.Errorf("%s %s %q, %v", r.Method, r.URL, body, err)
		}
		q := r.URL.Query()
		if r.URL.Path == "/end" {
			return
		}
		var status int
		if _, err := fmt.Sscan(q.Get("status"), &status); err != nil {
			t.Error(err)
		}
		if to := q.Get("to"); to != "" {
			w.Header()["Location"] = []string{strings.ReplaceAll(to, "HOME", strings.TrimPrefix(home.URL, "http://"))}
		}
		w.WriteHeader(status)
	})
	for _, tt := range []struct {
		to     string
		status int
		follow int
		want   int
	}{
		{"/end", 307, 0, 307},
		{"/end", 307, 1, 200},
		{"/end", 308, 1, 200},
		{"http://HOME/end", 308, 1, 200},
		{"http://anna:pw@HOME/end", 308, 1, 200},
		{"/end", 301, 5, 301},
		{"/end", 302, 5, 302},
		{"/end", 303, 5, 303},
		{"", 307, 5, 307},
		{"http://[::1", 307, 5, 307},
		{"https://HOME/end", 307, 5, 307},
		{"//" + strings.TrimPrefix(other.URL, "http://"), 307, 5, 307},
		{other.URL, 308, 5, 308},
		{"file:///etc/passwd", 307, 5, 307},
		{"?status=307&to=" + url.QueryEscape("/end"), 307, 1, 307},
		{"?status=307&to=" + url.QueryEscape("/end"), 307, 2, 200},
	} {
		u := fmt.Sprintf("%s/?status=%d&to=%s", home.URL, tt.status, url.QueryEscape(tt.to))
		a, err := dial(t, u, func(c *Config) { c.FollowRedirects = tt.follow }).post(t.Context(), hello())
		if err != nil || a.status != tt.want {
			t.Errorf("%d to %q, follow %d: %d, %v, want %d", tt.status, tt.to, tt.follow, a.status, err, tt.want)
		}
	}
	// A receiver that redirects to itself for ever.
	var hops atomic.Int32
	loop := listen(t, func(w http.ResponseWriter, r *http.Request) {
		hops.Add(1)
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	})
	if a, err := dial(t, loop.URL, func(c *Config) { c.FollowRedirects = 3 }).post(t.Context(), hello()); err != nil || a.status != 307 || hops.Load() != 4 {
		t.Errorf("%+v, %v after %d requests", a, err, hops.Load())
	}
	if elsewhere.Load() != 0 {
		t.Error("an event was sent elsewhere")
	}
}

func TestOriginNamesTheDefaultPort(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://Example.com/x": "http://example.com:80", "https://example.com": "https://example.com:443",
		"https://[::1]:8443/": "https://[::1]:8443",
	} {
		u, err := url.Parse(raw)
		if err != nil || origin(u) != want {
			t.Errorf("%s: %s, %v", raw, origin(u), err)
		}
	}
}

func TestHTTPSIsVerified(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	c := dial(t, s.URL, nil)
	if _, err := c.post(t.Context(), hello()); !errors.Is(err, ErrReceiver) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("unknown certificate: %v", err)
	}
	c = dial(t, s.URL, nil)
	c.base.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	if a, err := c.post(t.Context(), hello()); err != nil || a.status != http.StatusNoContent {
		t.Errorf("%+v, %v", a, err)
	}
}

// No part of the URL that may be secret gets into errors.
func TestErrorsTellNoSecret(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	hangUp := listen(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for _, u := range []string{"http://" + address, "https://" + address, hangUp.URL, "http://no-such-host.invalid"} {
		_, err := dial(t, u+"/hunter2?token=hunter2", nil).post(t.Context(), hello())
		if !errors.Is(err, ErrReceiver) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", u, err)
		}
	}
}
