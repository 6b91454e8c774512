package payment

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/services/events"
)

func order(id, customer string) events.Placed {
	return events.Placed{
		OrderID: id, CustomerID: customer, Items: []events.Item{{SKU: "widget", Quantity: 1}},
		Total: events.Money{Amount: 2500, Currency: "EUR"},
	}
}

// gatewayClient returns a client that waits so long for an answer of h.
func gatewayClient(t *testing.T, timeout time.Duration, h http.HandlerFunc) *client {
	t.Helper()
	srv := httptest.NewServer(h)
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	guard, err := resilience.New(resilience.Config{Name: "gateway", Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(srv.URL, guard, 1, m)
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		srv.Close()
	})
	return c
}

// How the consumer takes each answer: compared with what its own constructors make.
func TestAnswersDecideWhatBecomesOfTheEvent(t *testing.T) {
	t.Parallel()
	const problem = `{"type":"about:blank","title":"no","detail":"because"}`
	for _, tc := range []struct {
		name       string
		status     int
		retryAfter string
		body       string
		want       error // shape: nil, transient, permanent or retry after
		text       string
	}{
		{"captured", 201, "", `{"charge_id":"ch-1","amount":2500,"currency":"EUR","status":"captured"}`, nil, ""},
		{"replayed", 200, "", `{"charge_id":"ch-1","amount":2500,"currency":"EUR","status":"captured"}`, nil, ""},
		{"declined", 402, "", `{"status":"declined","reason":"no funds"}`, nil, ""},
		{"voided", 409, "", `{"type":"urn:farandole:gateway:voided"}`, nil, ""},
		{"other conflict", 409, "", problem, consumer.Permanent(ErrGateway), "409 no: because"},
		{"bad request", 400, "", problem, consumer.Permanent(ErrGateway), "400 no: because"},
		{"not found", 404, "", "no such page", consumer.Permanent(ErrGateway), `404 "no such page"`},
		{"redirect", 307, "", "", consumer.Permanent(ErrGateway), "307"},
		{"request timeout", 408, "", "", ErrGateway, "408"},
		{"error", 500, "", problem, ErrGateway, "500 no: because"},
		{"error with Retry-After", 500, "1", problem, ErrGateway, "500"},
		{"unavailable", 503, "", problem, ErrGateway, "503"},
		{"unavailable for 2 s", 503, "2", problem, consumer.RetryAfter(ErrGateway, 2*time.Second), "503"},
		{"too many", 429, "3", problem, consumer.RetryAfter(ErrGateway, 3*time.Second), "429"},
		{"too many, for a day", 429, "86400", problem, consumer.RetryAfter(ErrGateway, 30*time.Second), "429"},
		{"too many, says nothing", 429, "", problem, ErrGateway, "429"},
		{"no JSON", 201, "", "<html>", ErrGateway, "answer"},
		{"no charge id", 201, "", `{"amount":2500,"currency":"EUR"}`, ErrGateway, "answer"},
		{"another amount", 201, "", `{"charge_id":"ch-1","amount":1,"currency":"EUR"}`, ErrGateway, "want 2500 EUR"},
		{"endless answer", 201, "", strings.Repeat(" ", 1<<20) + `{"charge_id":"ch-1","amount":2500,"currency":"EUR"}`, ErrGateway, "answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := gatewayClient(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") != "charge-ord=201" {
					t.Errorf("key %q", r.Header.Get("Idempotency-Key"))
				}
				if tc.retryAfter != "" {
					w.Header().Set("Retry-After", tc.retryAfter)
				}
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body)) //nolint:errcheck // the client may not want all of it
			})
			_, err := c.charge(t.Context(), order("ord 1", "anna"))
			if !sameOutcome(err, tc.want) || err != nil && (!errors.Is(err, ErrGateway) || !strings.Contains(err.Error(), tc.text)) {
				t.Fatalf("got %v, want %v and %q", err, tc.want, tc.text)
			}
		})
	}
}

func TestNoAnswerIsTriedAgain(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	slow := gatewayClient(t, 50*time.Millisecond, func(http.ResponseWriter, *http.Request) { <-hung })
	defer close(hung)
	if _, err := slow.charge(t.Context(), order("o", "anna")); !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrGateway) || !sameOutcome(err, ErrGateway) {
		t.Errorf("timeout: %v", err)
	}
	lost := gatewayClient(t, time.Minute, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, err := lost.charge(t.Context(), order("o", "anna")); !sameOutcome(err, ErrGateway) || errors.Is(err, ErrTimeout) {
		t.Errorf("lost: %v", err)
	}
	none := *lost
	none.url = "http://127.0.0.1:1"
	if _, err := none.void(t.Context(), "o"); !sameOutcome(err, ErrGateway) || !errors.Is(err, ErrGateway) {
		t.Errorf("refused: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	for name, cfg := range map[string]Config{
		"no URL":                    {},
		"no scheme":                 {GatewayURL: "localhost:80"},
		"other scheme":              {GatewayURL: "nats://localhost"},
		"no host":                   {GatewayURL: "http://"},
		"negative timeout":          {GatewayURL: "http://gw", Timeout: -1},
		"as long as the handler's":  {GatewayURL: "http://gw", Timeout: 10 * time.Second},
		"longer than the handler's": {GatewayURL: "http://gw", Consumer: consumer.Config{HandlerTimeout: time.Second}},
	} {
		if _, err := New(b, cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(b, Config{GatewayURL: "http://gw", Consumer: consumer.Config{InFlight: 1}}); !errors.Is(err, consumer.ErrConfig) {
		t.Errorf("consumer: %v", err)
	}
	if _, err := New(b, Config{GatewayURL: "https://gw/api/"}); err != nil {
		t.Error(err)
	}
}
