package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
)

var errDown = errors.New("connection refused")

// charge is a call to a gateway that is down.
func charge(context.Context) error { return errDown }

// quote is a call that asks a dependency which is down for a rate of exchange.
func quote(context.Context) (string, error) { return "", errDown }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

var ctx = context.Background()

func Example_retry() {
	guard := must(resilience.New(resilience.Config{
		Name:  "gateway",
		Retry: resilience.RetryConfig{Retries: 2, BaseDelay: time.Millisecond}, // 3 attempts
	}))

	err := guard.Do(ctx, charge)

	fmt.Println(err)
	fmt.Println(guard.Stats().Failures, "attempts")
	// Output:
	// connection refused
	// 3 attempts
}

func Example_breaker() {
	breaker := must(resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway", Failures: 3, OpenFor: 10 * time.Second}))
	guard := must(resilience.New(resilience.Config{Name: "gateway", Breaker: breaker}))

	for range 5 {
		err := guard.Do(ctx, charge)
		var open *resilience.OpenError
		if errors.As(err, &open) {
			fmt.Println(open.Breaker, "is", open.State, "- come back later:", open.RetryAfter >= open.StaysOpen)
			continue
		}
		fmt.Println(err)
	}
	// Output:
	// connection refused
	// connection refused
	// connection refused
	// gateway is open - come back later: true
	// gateway is open - come back later: true
}

func Example_bulkhead() {
	guard := must(resilience.New(resilience.Config{
		Name:     "reports",
		Bulkhead: resilience.BulkheadConfig{Concurrency: 1, Queue: 0},
	}))

	err := guard.Do(ctx, func(ctx context.Context) error { // takes the only place
		return guard.Do(ctx, charge)
	})

	fmt.Println(errors.Is(err, resilience.ErrFull))
	// Output: true
}

func Example_rateLimit() {
	guard := must(resilience.New(resilience.Config{
		Name: "search",
		Rate: resilience.RateConfig{PerSecond: 100, KeyPerSecond: 5, KeyBurst: 2, MaxWait: 0}, // refuses, does not wait
	}))

	for range 3 {
		err := guard.Do(resilience.WithKey(ctx, "tenant-7"), func(context.Context) error { return nil })
		fmt.Println(errors.Is(err, resilience.ErrLimited))
	}
	// Output:
	// false
	// false
	// true
}

func Example_timeout() {
	guard := must(resilience.New(resilience.Config{Name: "gateway", Timeout: 10 * time.Millisecond}))

	err := guard.Do(ctx, func(ctx context.Context) error {
		<-ctx.Done() // a gateway that hangs
		return ctx.Err()
	})

	fmt.Println(errors.Is(err, resilience.ErrTimeout))
	// Output: true
}

func Example_fallback() {
	guard := must(resilience.New(resilience.Config{Name: "rates"}))
	rates := resilience.LastGood[string](guard, time.Hour)

	must(rates.Get(ctx, func(context.Context) (string, error) { return "1 EUR = 1.08 USD", nil }))
	answer, err := rates.Get(ctx, quote) // the dependency is down now

	fmt.Println(answer.Value, err)
	fmt.Println("old:", answer.Age > 0, "because of:", answer.Err)
	// Output:
	// 1 EUR = 1.08 USD <nil>
	// old: true because of: connection refused
}

func Example_combined() {
	guard := must(resilience.New(resilience.Config{
		Name:     "gateway",
		Retry:    resilience.RetryConfig{Retries: 2},
		Rate:     resilience.RateConfig{PerSecond: 50, MaxWait: time.Second},
		Bulkhead: resilience.BulkheadConfig{Concurrency: 16, Queue: 32},
		Breaker:  must(resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway"})),
		Timeout:  2 * time.Second,
	}))
	quotes := resilience.FallbackValue(guard, "no quote today")

	fmt.Println(strings.ReplaceAll(quotes.Describe(), " > ", "\n> "))
	// Output:
	// fallback (value)
	// > retry (2, 100ms to 5s, full jitter)
	// > rate limit (50/s, burst 50, waits up to 1s)
	// > bulkhead (16 at once, 32 waiting)
	// > breaker gateway (5 failures in a row, open for 5s, 3 probes)
	// > timeout (2s)
	// > call
}

func Example_handler() {
	placed := event.Define[string]("order.placed.v1")
	guard := must(resilience.New(resilience.Config{
		Name: "gateway", Breaker: must(resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway", Failures: 1})),
	}))
	registry := consumer.NewRegistry()

	consumer.Handle(registry, placed, func(ctx context.Context, _ event.Event, order string) (consumer.Step, error) {
		return resilience.Get(ctx, guard, func(ctx context.Context) (consumer.Step, error) {
			if order == "" {
				return consumer.Step{}, consumer.Permanent(errors.New("no order")) // the gateway is not to blame
			}
			return consumer.Step{}, charge(ctx)
		})
	})

	for _, order := range []string{"", "ord-1", "ord-2"} {
		e := must(placed.New("ada", order).Seal(event.Identity{ID: "1", Source: "/shop", Time: time.Now()}))
		_, err := registry.Invoke(ctx, event.Names{}, e)
		fmt.Println(errors.Is(err, resilience.ErrOpen), errors.Is(err, errDown))
	}
	// Output:
	// false false
	// false true
	// true false
}

func ExampleTransport() {
	n := 0
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer site.Close()

	guard := must(resilience.New(resilience.Config{
		Name:    "gateway",
		Retry:   resilience.RetryConfig{Retries: 2, BaseDelay: time.Millisecond},
		Breaker: must(resilience.NewBreaker(resilience.BreakerConfig{Name: "gateway"})),
		Timeout: 5 * time.Second,
	}))
	client := &http.Client{Transport: resilience.NewTransport(guard, http.DefaultTransport)}
	req := must(http.NewRequestWithContext(ctx, http.MethodPost, site.URL, strings.NewReader("amount=2500")))
	req.Header.Set("Idempotency-Key", "charge-ord-1") // without it a POST is not retried
	resp := must(client.Do(req))
	defer resp.Body.Close()

	fmt.Println(resp.Status, "after", n, "attempts")
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	// Output: 200 OK after 3 attempts
}
