package webhook

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
)

func TestWebhookDeliversChosenTypes(t *testing.T) {
	t.Parallel()
	for _, structured := range []bool{false, true} {
		b := bustest.NewBus(t)
		s := newSite(t, status(http.StatusNoContent))
		cfg := config(s.url + "/hook")
		cfg.Structured, cfg.Secrets = structured, []string{testSecret}
		w := start(t, b, cfg)
		first := publish(t, b, event.Draft{Type: "order.placed.v1", Key: "k", ContentType: "application/x-protobuf", Data: binaryData()})
		publish(t, b, event.Draft{Type: "order.cancelled.v1", Key: "k"})
		second := publish(t, b, event.Draft{Type: "order.shipped.v1", Key: "k"})
		w.reaches(t, func(st consumer.Stats) bool { return st.Handled == 2 })
		got := s.requests()
		if len(got) != 2 {
			t.Fatalf("%d requests", len(got))
		}
		for i, want := range []event.Event{first, second} {
			e, err := event.Decode(map[string][]string(got[i].header), got[i].body)
			if err != nil || e.Type() != want.Type() || !bytes.Equal(e.Data(), want.Data()) || got[i].key() != string(event.EventKeyOf(want)) {
				t.Errorf("request %d is %v, %v", i, e, err)
			}
		}
		if !structured && !bytes.Equal(got[0].body, binaryData()) {
			t.Errorf("body is %q", got[0].body)
		}
	}
}

func TestMetricsTellTheAnswers(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader([]int{503, 204}[n-1])
	})
	cfg := config(s.url)
	cfg.Consumer.Retry.MaxAttempts = 2
	w := start(t, b, cfg)
	publish(t, b, order("a"))
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == 1 })
	for _, want := range []string{"farandole_webhook_delivery_seconds partner 503", "farandole_webhook_delivery_seconds partner 204", "farandole_deliveries_total partner handled order.placed.v1"} {
		if got := series(t, w.Metrics()); !slices.Contains(got, want) {
			t.Errorf("%s is missing in %v", want, got)
		}
	}
}

func TestMetricsOfOddAnswers(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	m, err := newMetrics(r, "partner")
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{598, 599, 0} {
		m.delivery(status, time.Second)
	}
	want := []string{"farandole_webhook_delivery_seconds partner none", "farandole_webhook_delivery_seconds partner other"}
	if got := series(t, r); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRetriesHaveOneKeyAndANewSignature(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	cfg := config(s.url)
	cfg.Secrets, cfg.Consumer.Retry.MaxDelay = []string{testSecret}, 5*time.Second
	w := start(t, b, cfg)
	publish(t, b, order("a"))
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == 1 && st.Retried == 1 })
	got := s.requests()
	if len(got) != 2 || got[0].key() != got[1].key() || got[0].header.Get("webhook-id") != got[1].header.Get("webhook-id") {
		t.Fatalf("%+v", got)
	}
	if got[0].header.Get("webhook-timestamp") == got[1].header.Get("webhook-timestamp") {
		t.Error("a retry has the first delivery's timestamp")
	}
	if waited := got[1].at.Sub(got[0].at); waited < 2*time.Second-50*time.Millisecond { // clocks of two machines, in principle
		t.Errorf("asked to wait 2 s, waited %v", waited)
	}
}

// A receiver that is down gets the requests that find it out, and probes. What is not
// sent spends no attempt.
func TestReceiverThatIsDownIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	var up atomic.Bool
	s := newSite(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	cfg := config(s.url)
	cfg.Consumer.Concurrency = 2
	cfg.Consumer.Retry.MaxAttempts = 8
	w := start(t, b, cfg)
	const events = 50
	for i := range events {
		publish(t, b, order(fmt.Sprint("o", i)))
	}
	w.reaches(t, func(st consumer.Stats) bool { return st.Released >= events })
	if n, most := len(s.requests()), 2*8+1+2+3; n > most { // they open it, were under way, or are probes
		t.Errorf("%d requests while the receiver is down, want at most %d", n, most)
	}
	if st := w.Stats(); st.Parked != 0 || st.Retried > uint64(len(s.requests())) {
		t.Errorf("events have paid for it: %+v", st)
	}
	if err := w.Health(); err != nil {
		t.Errorf("the receiver's trouble makes the webhook unhealthy: %v", err)
	}
	up.Store(true)
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == events })
}

// One event that the receiver always refuses is no outage: the others are sent, and none
// of them waits for a breaker.
func TestOneEventThatAlwaysFailsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := newSite(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Ce-Id") == "bad" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	cfg := config(s.url)
	cfg.Consumer.Retry.MaxAttempts = 15
	w := start(t, b, cfg)
	publish(t, b, order("bad"))
	w.reaches(t, func(st consumer.Stats) bool { return st.Retried >= 8 })
	const others = 5
	for i := range others {
		publish(t, b, order(fmt.Sprint("o", i)))
		w.reaches(t, func(st consumer.Stats) bool { return st.Handled == uint64(i+1) })
	}
	w.reaches(t, func(st consumer.Stats) bool { return st.Parked == 1 })
	if st := w.Stats(); st.Released > 0 || len(s.requests()) != 15+others {
		t.Errorf("%d requests, %+v: a breaker has rejected some", len(s.requests()), st)
	}
}

// The first delivery that fails is a warning, those after it are not, and the log says
// when the receiver is back.
func TestReceiverThatIsDownIsAWarningAtOnce(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	var up atomic.Bool
	s := newSite(t, func(_ int, _ http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			panic(http.ErrAbortHandler)
		}
	})
	log := &lines{}
	cfg := config(s.url)
	cfg.Consumer.Retry.MaxAttempts = 1000
	cfg.Logger = zerolog.New(log)
	w := start(t, b, cfg)
	publish(t, b, order("a"))
	const down, again = `{"level":"warn","consumer":"partner","error":"webhook: receiver`, `"the receiver takes events again"`
	w.reaches(t, func(st consumer.Stats) bool { return st.Retried > 1 })
	if n := strings.Count(log.String(), down); n != 1 || strings.Contains(log.String(), again) {
		t.Errorf("warned %d times, want once: %s", n, log)
	}
	up.Store(true)
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == 1 })
	if n := strings.Count(log.String(), again); n != 1 {
		t.Errorf("told %d times that it takes events again, want once: %s", n, log)
	}
}

func TestEachRefusalIsOneDeadLetter(t *testing.T) {
	t.Parallel()
	elsewhere := newSite(t, status(http.StatusOK))
	for name, tt := range map[string]struct {
		answer   func(n int, w http.ResponseWriter, r *http.Request)
		reason   string
		requests int
		says     string
	}{
		"bad request": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no such \x1b[2J order", http.StatusBadRequest)
		}, event.ReasonPermanent, 1, `400 Bad Request: "no such \x1b[2J order\n"`},
		"redirect": {func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.url, http.StatusTemporaryRedirect)
		}, event.ReasonPermanent, 1, "307 Temporary Redirect: redirect not followed"},
		"unavailable with much to say": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, strings.Repeat("so much to say ", 1<<16))
		}, event.ReasonExhausted, 3, `503 Service Unavailable: "so much`},
		"hangs up": {func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, event.ReasonExhausted, 0, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bustest.NewBus(t)
			s := newSite(t, tt.answer)
			w := start(t, b, config(s.url))
			e := publish(t, b, order("a"))
			got := letter(t, b)
			if got.Reason != tt.reason || got.EventKey != event.EventKeyOf(e) || !strings.Contains(got.Error, tt.says) {
				t.Errorf("%+v, want %s saying %s", got, tt.reason, tt.says)
			}
			if n := len(s.requests()); n != tt.requests && tt.requests > 0 {
				t.Errorf("%d requests, want %d", n, tt.requests)
			}
			if err := w.Health(); err != nil {
				t.Errorf("the receiver's trouble makes the webhook unhealthy: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		if n := len(elsewhere.requests()); n != 0 {
			t.Errorf("%d events followed the redirect", n)
		}
	})
}

func TestASlowReceiverGetsTheEventAgain(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := newSite(t, func(n int, _ http.ResponseWriter, r *http.Request) {
		if n == 1 {
			<-r.Context().Done() // until the webhook hangs up
		}
	})
	cfg := config(s.url)
	cfg.Timeout = time.Second
	w := start(t, b, cfg)
	publish(t, b, order("a"))
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == 1 && st.Retried >= 1 })
	got := s.requests()
	if len(got) < 2 || got[0].key() != got[len(got)-1].key() {
		t.Errorf("%+v", got)
	}
}

// Events of one key go one after another, and a short retry holds its key.
func TestOrderOfOneKey(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	var under sync.Mutex
	s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if !under.TryLock() {
			t.Error("two deliveries of one key at once")
			return
		}
		defer under.Unlock()
		if n%3 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	const events = 20
	want := make([]string, events)
	for i := range events {
		d := order(fmt.Sprint("e", i))
		d.Key = "one"
		want[i] = string(event.EventKeyOf(publish(t, b, d)))
	}
	cfg := config(s.url)
	cfg.Consumer.Retry.MaxAttempts = 10
	w := start(t, b, cfg)
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == events })
	var got []string
	for i, r := range s.requests() {
		if (i+1)%3 != 0 {
			got = append(got, r.key())
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("taken in the order\n%v, want\n%v", got, want)
	}
}

// A stop cuts off a delivery whose grace is over; the next process makes it
// again, with the same key and no attempt spent.
func TestAStopSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	under := make(chan struct{})
	s := newSite(t, func(n int, _ http.ResponseWriter, r *http.Request) {
		if n == 1 {
			close(under)
			<-r.Context().Done()
		}
	})
	cfg := config(s.url)
	cfg.Consumer.Grace, cfg.Consumer.Retry.MaxAttempts = time.Millisecond, 1
	w := start(t, b, cfg)
	publish(t, b, order("a"))
	<-under
	w.stop()
	w = start(t, b, cfg)
	w.reaches(t, func(st consumer.Stats) bool { return st.Handled == 1 })
	if got := s.requests(); len(got) != 2 || got[0].key() != got[1].key() {
		t.Errorf("%+v", got)
	}
}

// Neither logs nor dead letters tell what is secret, and the receiver gets it.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	s := newSite(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			panic(http.ErrAbortHandler) // an error of the transport
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	log := &lines{}
	cfg := config(strings.Replace(s.url, "http://", "http://anna:hunter2@", 1) + "/hunter2?token=hunter2")
	cfg.Secrets, cfg.Headers, cfg.Logger = []string{testSecret}, map[string]string{"X-Api-Key": "hunter2"}, zerolog.New(log)
	cfg.Consumer.Retry.MaxAttempts = 10
	start(t, b, cfg)
	publish(t, b, order("a"))
	entry := letter(t, b)
	queue, err := letters.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	record, err := queue.Get(t.Context(), entry.ID)
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%+v %+v %+v %s", entry, record.Letter, record.Mark, log)
	for _, secret := range []string{"hunter2", "anna", testSecret[6:]} {
		if strings.Contains(all, secret) {
			t.Errorf("%s is told in %s", secret, all)
		}
	}
	got := s.requests()[0].header
	if got.Get("Authorization") != "Basic YW5uYTpodW50ZXIy" || got.Get("X-Api-Key") != "hunter2" {
		t.Errorf("%v", got)
	}
}

func TestNewTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	cfg := valid()
	cfg.URL = "nowhere"
	if _, err := New(b, cfg); !errors.Is(err, ErrConfig) {
		t.Errorf("New = %v", err)
	}
	cfg = valid()
	cfg.Consumer.Concurrency = -1
	if _, err := New(b, cfg); !errors.Is(err, consumer.ErrConfig) {
		t.Errorf("New = %v", err)
	}
	cfg = valid()
	cfg.Types = append(cfg.Types, cfg.Types...)
	if _, err := New(b, cfg); !errors.Is(err, consumer.ErrConfig) {
		t.Errorf("New = %v", err)
	}
}
