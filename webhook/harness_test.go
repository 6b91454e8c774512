package webhook

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
)

// received is one request that a receiver has got.
type received struct {
	header http.Header
	body   []byte
	at     time.Time
}

func (r received) key() string { return r.header.Get(headerKey) }

// site is a receiver that does what a test says, and remembers all requests.
type site struct {
	t   *testing.T
	url string

	mu   sync.Mutex
	seen []received
}

// newSite starts a receiver; answer gets the number of the request, from 1.
func newSite(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *site {
	t.Helper()
	s := &site{t: t}
	s.url = listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // cut off
		}
		s.mu.Lock()
		s.seen = append(s.seen, received{r.Header, body, time.Now()})
		n := len(s.seen)
		s.mu.Unlock()
		answer(n, w, r)
	}).URL
	return s
}

func (s *site) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]received(nil), s.seen...)
}

func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// config delivers to a URL and loses its patience soon.
func config(u string) Config {
	return Config{URL: u, Name: "partner", Types: []event.Type{"order.placed.v1", "order.shipped.v1"}, Timeout: 20 * time.Second, Consumer: consumer.Config{
		Retry: consumer.RetryPolicy{MaxAttempts: 3, BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	}}
}

// running is a webhook that runs.
type running struct {
	*Webhook
	stop func() // and wait; stopping twice is fine
}

func start(t *testing.T, b *bus.Bus, cfg Config) running {
	t.Helper()
	w, err := New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r := running{w, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(r.stop)
	bustest.Eventually(t, within, w.Health)
	return r
}

// reaches waits for the counts.
func (r running) reaches(t *testing.T, is func(consumer.Stats) bool) {
	t.Helper()
	bustest.Eventually(t, within, func() error {
		if st := r.Stats(); !is(st) {
			return fmt.Errorf("%+v", st)
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
	return event.Draft{Type: "order.placed.v1", Key: event.Key(id), ID: id, ContentType: event.ContentTypeJSON, Data: []byte(`{"id":"` + id + `"}`)}
}

// letter waits for the one dead letter.
func letter(t *testing.T, b *bus.Bus) dlq.Entry {
	t.Helper()
	queue, err := letters.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	var page dlq.Page
	bustest.Eventually(t, within, func() error {
		page, err = queue.List(t.Context(), dlq.Filter{}, dlq.PageOptions{})
		if err == nil && len(page.Entries) != 1 {
			err = fmt.Errorf("%d dead letters", len(page.Entries))
		}
		return err
	})
	return page.Entries[0]
}

// series are the names of all series with the values of their labels.
func series(t *testing.T, g prometheus.Gatherer) (all []string) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all = append(all, name)
		}
	}
	return all
}

// lines is a log that tests read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
