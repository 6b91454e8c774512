package resilience

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Fallback answers in place of a dependency that does not work. It does so when a
// call failed ([Failure]) or a policy rejected it: not for business errors, not for a
// caller that has given up, and never for a panic. Make it with [FallbackValue],
// [FallbackFunc] or [LastGood]. It is safe for concurrent use.
type Fallback[T any] struct {
	guard *Guard
	kind  string
	// instead returns the answer, or an error if there is none.
	instead func(ctx context.Context, err error) (Answer[T], error)
	// good is called with each answer of the dependency.
	good func(T)
}

// Answer is the result of a call with a fallback.
type Answer[T any] struct {
	Value T
	// Err is why the fallback answered; nil if the dependency did.
	Err error
	// Age is how old the last good answer is that [LastGood] gave, else 0.
	Age time.Duration
}

// FallbackValue answers with a value.
func FallbackValue[T any](g *Guard, value T) *Fallback[T] {
	f := FallbackFunc(g, func(context.Context, error) (T, error) { return value, nil })
	f.kind = "value"
	return f
}

// FallbackFunc answers with what instead makes of the error. If it returns an error,
// so does the call, and its error matches both.
func FallbackFunc[T any](g *Guard, instead func(ctx context.Context, err error) (T, error)) *Fallback[T] {
	return &Fallback[T]{
		guard: g, kind: "function", good: func(T) {},
		instead: func(ctx context.Context, err error) (Answer[T], error) {
			value, err := instead(ctx, err)
			return Answer[T]{Value: value}, err
		},
	}
}

// errNoneGood is why there is no last good answer.
var errNoneGood = errors.New("resilience: no good answer that is young enough")

// LastGood answers with the dependency's last answer, if it is no older than maxAge.
// It is for calls that always ask the same: it knows one answer, whatever the call.
func LastGood[T any](g *Guard, maxAge time.Duration) *Fallback[T] {
	var mu sync.Mutex
	var last T
	var at time.Time
	return &Fallback[T]{
		guard: g, kind: fmt.Sprintf("last good answer, up to %v old", maxAge),
		good: func(value T) {
			mu.Lock()
			defer mu.Unlock()
			last, at = value, time.Now()
		},
		instead: func(context.Context, error) (Answer[T], error) {
			mu.Lock()
			defer mu.Unlock()
			if age := time.Since(at); !at.IsZero() && age <= maxAge {
				return Answer[T]{Value: last, Age: age}, nil
			}
			return Answer[T]{}, errNoneGood
		},
	}
}

// Get makes a call under the guard's policies, as [Get] does, and answers in place
// of the dependency if that does not work.
func (f *Fallback[T]) Get(ctx context.Context, fn func(ctx context.Context) (T, error)) (Answer[T], error) {
	value, err := Get(ctx, f.guard, fn)
	if err == nil {
		f.good(value)
		return Answer[T]{Value: value}, nil
	}
	if ctx.Err() == context.Canceled || !isRejection(err) && f.guard.cfg.Classify(err) != Failure {
		return Answer[T]{Value: value}, err
	}
	answer, none := f.instead(ctx, err)
	if none != nil {
		return answer, fmt.Errorf("%w; fallback: %w", err, none)
	}
	f.guard.fallbacks.Add(1)
	answer.Err = err
	return answer, nil
}

// Describe tells the fallback and the guard's policies in their order.
func (f *Fallback[T]) Describe() string {
	return fmt.Sprintf("fallback (%s) > %s", f.kind, f.guard.Describe())
}
