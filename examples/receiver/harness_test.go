package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/webhook"
)

const (
	within = 60 * time.Second // how long a test waits for what has to happen
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	placed = event.Type("order.placed.v1")
)

func another(b byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(b), 32)))
}

// TestMain is also the main of the webhook that a test kills.
func TestMain(m *testing.M) {
	if os.Getenv(childServer) != "" {
		child()
		return
	}
	log.SetOutput(io.Discard)
	bustest.Main(m)
}

// newReceiver opens a receiver with an empty file.
func newReceiver(t *testing.T, secrets ...string) *receiver {
	t.Helper()
	r, err := open(t.Context(), filepath.Join(t.TempDir(), "taken.db"), secrets...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.db.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// count is how many events the receiver has taken.
func (r *receiver) count(t *testing.T) (n int) {
	t.Helper()
	if err := r.db.QueryRowContext(t.Context(), `SELECT count(*) FROM taken`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// front stands before a receiver: it does what a test says to the n-th
// request, counted from 1, and keeps the keys of all.
type front struct {
	url string

	mu   sync.Mutex
	keys []string
}

func newFront(t *testing.T, do func(n int, w http.ResponseWriter, r *http.Request)) *front {
	t.Helper()
	f := &front{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.keys = append(f.keys, r.Header.Get("Idempotency-Key"))
		n := len(f.keys)
		f.mu.Unlock()
		do(n, w, r)
	}))
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

func (f *front) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.keys...)
}

// config is a webhook's that loses its patience soon.
func config(u string) webhook.Config {
	return webhook.Config{
		URL: u, Name: "partner", Types: []event.Type{placed}, Secrets: []string{secret}, Timeout: 20 * time.Second,
		Consumer: consumer.Config{Retry: consumer.RetryPolicy{MaxAttempts: 4, BaseDelay: 10 * time.Millisecond, MaxDelay: 5 * time.Second}},
	}
}

// deliver runs a webhook until the test ends.
func deliver(t *testing.T, b *bus.Bus, cfg webhook.Config) *webhook.Webhook {
	t.Helper()
	w, err := webhook.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func handled(t *testing.T, w *webhook.Webhook, n uint64) {
	t.Helper()
	bustest.Eventually(t, within, func() error {
		if st := w.Stats(); st.Handled < n {
			return fmt.Errorf("%+v, want %d handled", st, n)
		}
		return nil
	})
}

func publish(t *testing.T, b *bus.Bus, d event.Draft) event.Event {
	t.Helper()
	e, err := b.Seal(d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	return e
}

func order(id string) event.Draft {
	return event.Draft{Type: placed, Key: event.Key(id), ID: id, ContentType: event.ContentTypeJSON, Data: []byte(`{"id":"` + id + `"}`)}
}
