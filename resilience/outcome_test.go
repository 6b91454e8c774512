package resilience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/farandole/farandole/consumer"
)

func TestErrorsAreClassified(t *testing.T) {
	t.Parallel()
	status := func(n int) error { return fmt.Errorf("call: %w", &statusError{status: n}) }
	for name, tc := range map[string]struct {
		err  error
		want Outcome
	}{
		"none":                      {nil, Success},
		"permanent":                 {consumer.Permanent(errDown), Success},
		"wrapped permanent":         {fmt.Errorf("call: %w", consumer.Permanent(errDown)), Success},
		"skip":                      {consumer.Skip, Success},
		"retry after":               {consumer.RetryAfter(errDown, 1), Failure},
		"400":                       {status(400), Success},
		"404":                       {status(404), Success},
		"429":                       {status(429), Failure},
		"500":                       {status(500), Failure},
		"503":                       {status(503), Failure},
		"cancelled":                 {fmt.Errorf("call: %w", context.Canceled), Neutral},
		"deadline":                  {context.DeadlineExceeded, Failure},
		"timeout":                   {fmt.Errorf("%w: %w", ErrTimeout, context.Canceled), Failure},
		"no connection":             {&net.OpError{Op: "dial", Err: errDown}, Failure},
		"cut off":                   {io.ErrUnexpectedEOF, Failure},
		"unknown":                   {errDown, Failure},
		"another breaker":           {&OpenError{}, Neutral},
		"another limit":             {&LimitError{}, Neutral},
		"another bulkhead":          {fmt.Errorf("%w: x", ErrFull), Neutral},
		"permanent for a 503":       {consumer.Permanent(status(503)), Success},
		"cancelled, and said so":    {errors.Join(errDown, context.Canceled), Neutral},
		"permanent for a timed out": {consumer.Permanent(ErrTimeout), Failure},
	} {
		if got := Classify(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestBusinessErrorsAndCancellationsNeverOpenABreaker(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 3, Probes: 1})
	g := newGuard(t, Config{Breaker: b})
	for range 100 {
		for _, err := range []error{consumer.Permanent(errDown), &statusError{status: 404}, context.Canceled} {
			if got := g.Do(t.Context(), func(context.Context) error { return err }); !errors.Is(got, err) {
				t.Fatal(got)
			}
		}
		cancelled, cancel := context.WithCancel(t.Context())
		// Whatever the error is: its caller has gone.
		if got := g.Do(cancelled, func(context.Context) error { cancel(); return errDown }); !errors.Is(got, errDown) {
			t.Fatal(got)
		}
	}
	expectState(t, b, Closed)
}

func TestBusinessErrorOfAProbeProvesThatTheDependencyLives(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 1, Probes: 1})
	g := newGuard(t, Config{Breaker: b})
	b.Open(1)
	if err := g.Do(t.Context(), func(context.Context) error { return context.Canceled }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	expectState(t, b, HalfOpen) // a cancelled probe proves nothing
	if err := g.Do(t.Context(), func(context.Context) error { return consumer.Permanent(errDown) }); !errors.Is(err, errDown) {
		t.Fatal(err)
	}
	expectState(t, b, Closed)
}
