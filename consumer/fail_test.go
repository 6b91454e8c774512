package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/farandole/farandole/event"
)

var testPolicy = RetryPolicy{MaxAttempts: 4, BaseDelay: 100 * time.Millisecond, MaxDelay: time.Second}

func TestDecide(t *testing.T) {
	t.Parallel()
	plain := errors.New("connection refused")
	for name, tt := range map[string]struct {
		err      error
		failures int
		want     verdict
	}{
		"first failure is retried":                {plain, 1, verdict{action: retry, delay: 50 * time.Millisecond}},
		"second failure waits longer":             {plain, 2, verdict{action: retry, delay: 100 * time.Millisecond}},
		"last failure but one":                    {plain, 3, verdict{action: retry, delay: 200 * time.Millisecond}},
		"last attempt":                            {plain, 4, verdict{action: park, reason: event.ReasonExhausted}},
		"more failures than the maximum":          {plain, 9, verdict{action: park, reason: event.ReasonExhausted}},
		"panic":                                   {&panicError{value: "boom"}, 1, verdict{action: retry, delay: 50 * time.Millisecond}},
		"timeout":                                 {fmt.Errorf("%w: %w", ErrTimeout, plain), 1, verdict{action: retry, delay: 50 * time.Millisecond}},
		"permanent":                               {Permanent(plain), 1, verdict{action: park, reason: event.ReasonPermanent}},
		"permanent inside another error":          {fmt.Errorf("charge: %w", Permanent(plain)), 1, verdict{action: park, reason: event.ReasonPermanent}},
		"permanent at the last attempt":           {Permanent(plain), 4, verdict{action: park, reason: event.ReasonPermanent}},
		"undecodable":                             {withWish(undecodable, plain, 0), 1, verdict{action: park, reason: event.ReasonDecode}},
		"expired":                                 {withWish(expired, plain, 0), 1, verdict{action: park, reason: event.ReasonExpired}},
		"retry after":                             {RetryAfter(plain, time.Minute), 1, verdict{action: retry, delay: time.Minute}},
		"retry after less than the backoff":       {RetryAfter(plain, time.Millisecond), 3, verdict{action: retry, delay: 200 * time.Millisecond}},
		"retry after a negative time":             {RetryAfter(plain, -time.Minute), 1, verdict{action: retry, delay: 50 * time.Millisecond}},
		"retry after spends attempts":             {RetryAfter(plain, time.Minute), 4, verdict{action: park, reason: event.ReasonExhausted}},
		"yield":                                   {Yield(plain, time.Minute), 1, verdict{action: retry, delay: time.Minute, yields: true}},
		"yield waits for a timer at least":        {Yield(plain, 0), 1, verdict{action: retry, delay: time.Second, yields: true}},
		"yield spends attempts":                   {Yield(plain, 0), 4, verdict{action: park, reason: event.ReasonExhausted}},
		"the outer of two wishes counts":          {Permanent(RetryAfter(plain, time.Minute)), 1, verdict{action: park, reason: event.ReasonPermanent}},
		"the outer of two wishes counts, swapped": {RetryAfter(Permanent(plain), time.Minute), 1, verdict{action: retry, delay: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := decide(tt.err, tt.failures, testPolicy, 0.5); got != tt.want {
				t.Errorf("decide = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestWishesOfNilAreNil(t *testing.T) {
	t.Parallel()
	if err := Permanent(nil); err != nil {
		t.Errorf("Permanent(nil) = %v", err)
	}
	if err := Yield(nil, time.Second); err != nil {
		t.Errorf("Yield(nil) = %v", err)
	}
	if err := RetryAfter(nil, time.Second); err != nil {
		t.Errorf("RetryAfter(nil) = %v", err)
	}
}

// An event's draws are uniform for each retry, and together never short.
func TestDrawsLastLongEnough(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{MaxAttempts: 5, BaseDelay: 500 * time.Millisecond, MaxDelay: 5 * time.Second}
	const events = 2000
	var buckets [5][10]int // by retry, by tenth of the interval
	for i := range events {
		key := event.NewEventKey("/test", strconv.Itoa(i))
		var lasted time.Duration
		for failures := 1; failures < p.MaxAttempts; failures++ {
			u := draw(key, 0, failures, p)
			buckets[failures][min(int(u*10), 9)]++
			lasted += decide(errors.New("down"), failures, p, u).delay
		}
		if least := 3500 * time.Millisecond; lasted < least {
			t.Fatalf("all attempts of %s are spent in %v, want at least %v", key, lasted, least)
		}
	}
	for failures := 1; failures < p.MaxAttempts; failures++ {
		for tenth, n := range buckets[failures] {
			if n < events/10*7/10 || n > events/10*13/10 {
				t.Errorf("retry %d: %d of %d draws in tenth %d of the interval", failures, n, events, tenth)
			}
		}
	}
	if draw("a", 0, 1, p) == draw("a", 1, 1, p) {
		t.Error("a replay draws the same delays again")
	}
}

type declined struct{ code int }

func (d *declined) Error() string { return fmt.Sprint("declined: ", d.code) }

func TestClassOf(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"plain":            {errors.New("x"), "error"},
		"formatted":        {fmt.Errorf("x %d", 1), "error"},
		"type":             {&declined{1}, "consumer.declined"},
		"wrapped type":     {fmt.Errorf("charge: %w", &declined{1}), "consumer.declined"},
		"permanent type":   {Permanent(&declined{1}), "consumer.declined"},
		"innermost of two": {fmt.Errorf("%w: %w", io.EOF, &declined{1}), "consumer.declined"},
		"joined":           {errors.Join(io.EOF, &declined{1}), "consumer.declined"},
		"panic":            {&panicError{value: &declined{1}}, "panic"},
		"timeout":          {fmt.Errorf("%w: %w", ErrTimeout, &declined{1}), "timeout"},
		"decode":           {withWish(undecodable, fmt.Errorf("%w: x", event.ErrDecode), 0), "decode"},
		"deadline":         {context.DeadlineExceeded, "context.deadlineExceededError"},
		"wraps nothing":    {&wrapsNothing{}, "consumer.wrapsNothing"},
		"wraps no one":     {&wrapsNoOne{}, "consumer.wrapsNoOne"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := classOf(tt.err); got != tt.want {
				t.Errorf("classOf = %q, want %q", got, tt.want)
			}
		})
	}
}

type wrapsNothing struct{}

func (*wrapsNothing) Error() string { return "nothing" }

func (*wrapsNothing) Unwrap() error { return nil }

type wrapsNoOne struct{}

func (*wrapsNoOne) Error() string { return "no one" }

func (*wrapsNoOne) Unwrap() []error { return nil }
