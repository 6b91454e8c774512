package resilience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// site is a server that answers the nth request, from 1, as a test says.
type site struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
}

func newSite(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *site {
	t.Helper()
	s := &site{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return // cut off
		}
		s.mu.Lock()
		s.bodies = append(s.bodies, string(data))
		n := len(s.bodies)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.bodies...)
}

// newClient returns a client under a guard.
func newClient(t *testing.T, g *Guard) *http.Client {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: NewTransport(g, base)}
}

// send sends a request with a body, reads its answer, and tells the status.
func send(ctx context.Context, t *testing.T, c *http.Client, method, url, key string, body io.Reader) (status int, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	return resp.StatusCode, err
}

func quick(retries int) RetryConfig {
	return RetryConfig{Retries: retries, BaseDelay: time.Millisecond, MaxDelay: 2 * time.Second}
}

func TestAnswersThatAreFailuresCountThoughThereIsNoError(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]State{500: Open, 503: Open, 429: Open, 404: Closed, 402: Closed, 302: Closed, 200: Closed} {
		s := newSite(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "body")
		})
		b, _ := newBreaker(t, BreakerConfig{Failures: 3})
		c := newClient(t, newGuard(t, Config{Breaker: b}))
		for range 3 {
			if got, err := send(t.Context(), t, c, http.MethodGet, s.URL, "", nil); got != status || err != nil {
				t.Fatalf("%d, %v, want %d", got, err, status)
			}
		}
		expectState(t, b, want)
		if _, err := send(t.Context(), t, c, http.MethodGet, s.URL, "", nil); (want == Open) != errors.Is(err, ErrOpen) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestRequestIsRetriedWithItsBody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, method, key string
		body              func() io.Reader
		want              int // requests
	}{
		{"idempotent", http.MethodPut, "", func() io.Reader { return strings.NewReader("data") }, 3},
		{"with a key", http.MethodPost, "k-1", func() io.Reader { return strings.NewReader("data") }, 3},
		{"without a key", http.MethodPost, "", func() io.Reader { return strings.NewReader("data") }, 1},
		{"body that cannot be sent again", http.MethodPut, "", func() io.Reader { return io.MultiReader(strings.NewReader("data")) }, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				switch n {
				case 1:
					panic(http.ErrAbortHandler) // no answer
				case 2:
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			g := newGuard(t, Config{Retry: quick(5)})
			status, err := send(t.Context(), t, newClient(t, g), tc.method, s.URL, tc.key, tc.body())
			got := s.requests()
			if len(got) != tc.want || (err == nil && status == http.StatusOK) != (tc.want == 3) {
				t.Fatalf("%d requests, %d, %v", len(got), status, err)
			}
			for _, body := range got {
				if body != "data" {
					t.Errorf("body %q", body)
				}
			}
			if st := g.Stats(); st.Running != 0 || st.Retry.Retries != uint64(tc.want-1) {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestLastAnswerIsTheCallersWithItsBody(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "attempt %d", n)
	})
	g := newGuard(t, Config{Retry: quick(2), Timeout: time.Minute, Bulkhead: BulkheadConfig{Concurrency: 1}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := newClient(t, g).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if st := g.Stats(); st.Running != 1 || st.Bulkhead.Running != 1 {
		t.Errorf("an answer that is not read yet has no place: %+v", st)
	}
	text, err := io.ReadAll(resp.Body)
	if string(text) != "attempt 3" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if st := g.Stats(); st.Running != 0 || st.Bulkhead.Running != 0 || st.Failures != 3 {
		t.Errorf("%+v", st)
	}
	if err := errors.Join(resp.Body.Close(), resp.Body.Close()); err != nil {
		t.Error(err)
	}
	if st := g.Stats(); st.Running != 0 || st.Failures != 3 {
		t.Errorf("closing counts again: %+v", st)
	}
}

func TestRetriesUseOneConnection(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	from := map[string]bool{}
	s := newSite(t, func(n int, w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		from[r.RemoteAddr] = true
		if n < 5 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, strings.Repeat("x", 10<<10))
		}
	})
	c := newClient(t, newGuard(t, Config{Retry: quick(10)}))
	if status, err := send(t.Context(), t, c, http.MethodGet, s.URL, "", nil); status != http.StatusOK || err != nil {
		t.Fatalf("%d, %v", status, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(from) != 1 {
		t.Errorf("%d connections: an answer was not read or not closed", len(from))
	}
}

func TestTransportKeepsRetryAfter(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]int{"1": 2, "3": 1} { // 3 s is longer than MaxDelay
		var first, second atomic.Int64
		s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				first.Store(time.Now().UnixMilli())
				w.Header().Set("Retry-After", header)
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			second.Store(time.Now().UnixMilli())
		})
		status, err := send(t.Context(), t, newClient(t, newGuard(t, Config{Retry: quick(1)})), http.MethodGet, s.URL, "", nil)
		if n := len(s.requests()); n != want || err != nil || want == 1 && status != http.StatusTooManyRequests {
			t.Fatalf("Retry-After %s: %d requests, %d, %v", header, n, status, err)
		}
		if waited := second.Load() - first.Load(); want == 2 && waited < 1000 {
			t.Errorf("came back after %d ms", waited)
		}
	}
}

func TestTimeoutLastsUntilTheBodyIsRead(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			fmt.Fprint(w, "the beginning")
			_ = http.NewResponseController(w).Flush() //nolint:errcheck // then the client waits in vain as well
		}
		<-hung
	})
	t.Cleanup(func() { close(hung) })
	b, _ := newBreaker(t, BreakerConfig{Failures: 2})
	g := newGuard(t, Config{Breaker: b, Timeout: 100 * time.Millisecond})
	c := newClient(t, g)
	for _, part := range []string{"body", "header"} {
		if _, err := send(t.Context(), t, c, http.MethodGet, s.URL, "", nil); !errors.Is(err, ErrTimeout) {
			t.Fatalf("%s: %v", part, err)
		}
	}
	expectState(t, b, Open)
	if st := g.Stats(); st.TimedOut != 2 || st.Running != 0 || st.Failures != 2 {
		t.Errorf("%+v", st)
	}
}

func TestCallerThatGivesUpIsNoFailure(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	hung := make(chan struct{})
	s := newSite(t, func(int, http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-hung })
	t.Cleanup(func() { close(hung) })
	b, _ := newBreaker(t, BreakerConfig{Failures: 1})
	g := newGuard(t, Config{Breaker: b, Timeout: 10 * time.Second, Retry: quick(3)})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := send(ctx, t, newClient(t, g), http.MethodGet, s.URL, "", nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	expectState(t, b, Closed)
	if st := g.Stats(); st.Neutral != 1 || st.Running != 0 || st.Retry.Retries != 0 {
		t.Errorf("%+v", st)
	}
}

// closing notes that a body was closed.
type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

func TestBodyOfARequestThatIsNotMadeIsClosed(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{})
	b.Open(time.Hour)
	body := &closing{Reader: strings.NewReader("data")}
	_, err := send(t.Context(), t, newClient(t, newGuard(t, Config{Breaker: b})), http.MethodPost, "http://127.0.0.1:1", "", body)
	if open := new(OpenError); !errors.As(err, &open) || open.StaysOpen == 0 || !body.closed.Load() {
		t.Errorf("%v, closed %v", err, body.closed.Load())
	}
}

func TestPanicOfATransportLosesNoPermit(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Probes: 1})
	b.Open(1)
	g := newGuard(t, Config{Breaker: b, Bulkhead: BulkheadConfig{Concurrency: 1}, Timeout: 10 * time.Second})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was hidden")
			}
		}()
		_, _ = send(t.Context(), t, &http.Client{Transport: NewTransport(g, panicking{})}, http.MethodGet, "http://x", "", nil) //nolint:errcheck // it panics
	}()
	if st := g.Stats(); st.Running != 0 || st.Bulkhead.Running != 0 || st.Breaker.Running != 0 {
		t.Errorf("%+v", st)
	}
}

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("transport") }
