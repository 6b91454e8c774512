package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"
	"github.com/sony/gobreaker/v2"

	"github.com/farandole/farandole/resilience"
)

const (
	nameRejected = "rejected: resilience, breaker is open"
	nameTimedOut = "timed out: resilience, timeout of 10 ms"
	// endless is a rate that nobody reaches.
	endless = 1e9
)

var errExpected = errors.New("bench: not what was expected")

// policies measures what the policies of package resilience cost a call that succeeds
// at once, and what a rejected call costs, beside two peers.
func (b *bench) policies(ctx context.Context) error {
	all := []small{{"call alone", func() error { return succeed(ctx) }}}
	ours, err := ownPolicies(ctx)
	if err != nil {
		return err
	}
	if b.results.Policies, err = b.costs(ctx, "policy", append(append(all, ours...), peerPolicies(ctx)...)); err != nil {
		return err
	}
	if err := b.title("policy: one call that succeeds at once, or is rejected, median of %d", b.reps); err != nil {
		return err
	}
	return b.printCosts(b.results.Policies)
}

func succeed(context.Context) error { return nil }

func ownPolicies(ctx context.Context) ([]small, error) {
	var all []small
	var errs []error
	breaker := func(cfg resilience.BreakerConfig) *resilience.Breaker {
		cfg.Name = "bench"
		made, err := resilience.NewBreaker(cfg)
		errs = append(errs, err)
		return made
	}
	guard := func(cfg resilience.Config) *resilience.Guard {
		cfg.Name = "bench"
		g, err := resilience.New(cfg)
		errs = append(errs, err)
		return g
	}
	add := func(name string, cfg resilience.Config) {
		g := guard(cfg)
		all = append(all, small{"resilience: " + name, func() error { return g.Do(ctx, succeed) }})
	}
	retry, rate := resilience.RetryConfig{Retries: 2}, resilience.RateConfig{PerSecond: endless, MaxWait: time.Second}
	places := resilience.BulkheadConfig{Concurrency: 64, Queue: 64}
	add("no policy", resilience.Config{})
	add("retry", resilience.Config{Retry: retry})
	add("rate limit", resilience.Config{Rate: rate})
	add("bulkhead", resilience.Config{Bulkhead: places})
	add("breaker, failures in a row", resilience.Config{Breaker: breaker(resilience.BreakerConfig{})})
	add("breaker, failure rate over 10 s", resilience.Config{Breaker: breaker(resilience.BreakerConfig{FailureRate: 0.5, Window: 10 * time.Second})})
	add("timeout", resilience.Config{Timeout: time.Second})
	full := resilience.Config{Retry: retry, Rate: rate, Bulkhead: places, Breaker: breaker(resilience.BreakerConfig{}), Timeout: time.Second}
	add("all of them", full)
	last := resilience.LastGood[int](guard(full), time.Minute)
	all = append(all, small{"resilience: all of them and a fallback", func() error {
		_, err := last.Get(ctx, func(context.Context) (int, error) { return 1, nil })
		return err
	}})
	open := breaker(resilience.BreakerConfig{})
	if open != nil {
		open.Open(time.Hour)
	}
	rejecting, hanging := guard(resilience.Config{Breaker: open}), guard(resilience.Config{Timeout: 10 * time.Millisecond})
	all = append(all,
		small{nameRejected, func() error { return expect(resilience.ErrOpen, rejecting.Do(ctx, succeed)) }},
		small{nameTimedOut, func() error {
			return expect(resilience.ErrTimeout, hanging.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		}})
	return all, errors.Join(errs...)
}

func peerPolicies(ctx context.Context) []small {
	gob := gobreaker.NewCircuitBreaker[any](gobreaker.Settings{Name: "bench"})
	openGob := gobreaker.NewCircuitBreaker[any](gobreaker.Settings{Name: "bench", Timeout: time.Hour})
	for range 6 { // it opens after more than five in a row
		_, _ = openGob.Execute(func() (any, error) { return nil, errExpected }) //nolint:errcheck // to open it
	}
	row := circuitbreaker.NewBuilder[any]().WithFailureThreshold(5).Build()
	open := circuitbreaker.NewBuilder[any]().WithDelay(time.Hour).Build()
	open.Open()
	one := failsafe.With[any](row).WithContext(ctx)
	rejecting := failsafe.With[any](open).WithContext(ctx)
	full := failsafe.With(
		failsafe.Policy[any](retrypolicy.NewBuilder[any]().WithMaxRetries(2).Build()),
		ratelimiter.NewSmoothBuilderWithMaxRate[any](time.Nanosecond).WithMaxWaitTime(time.Second).Build(),
		bulkhead.NewBuilder[any](64).WithMaxWaitTime(time.Second).Build(),
		circuitbreaker.NewBuilder[any]().WithFailureThreshold(5).Build(),
		timeout.New[any](time.Second),
	).WithContext(ctx)
	call := func() error { return succeed(ctx) }
	return []small{
		{"gobreaker: breaker", func() error { _, err := gob.Execute(func() (any, error) { return nil, call() }); return err }},
		{"failsafe-go: breaker", func() error { return one.Run(call) }},
		{"failsafe-go: all of them", func() error { return full.Run(call) }},
		{"rejected: gobreaker", func() error {
			_, err := openGob.Execute(func() (any, error) { return nil, call() })
			return expect(gobreaker.ErrOpenState, err)
		}},
		{"rejected: failsafe-go", func() error { return expect(circuitbreaker.ErrOpen, rejecting.Run(call)) }},
	}
}

// expect returns an error unless the call ended as it should.
func expect(want, got error) error {
	if !errors.Is(got, want) {
		return fmt.Errorf("%w: %w, want %w", errExpected, got, want)
	}
	return nil
}
