package resilience

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farandole/farandole/consumer"
)

func TestFallbackAnswersForADependencyThatDoesNotWork(t *testing.T) {
	t.Parallel()
	b, _ := newBreaker(t, BreakerConfig{Failures: 1})
	g := newGuard(t, Config{Breaker: b})
	f := FallbackValue(g, 42)
	down := func(context.Context) (int, error) { return 0, errDown }
	for _, want := range []error{errDown, ErrOpen} { // it failed, then the breaker rejects
		a, err := f.Get(t.Context(), down)
		if err != nil || a.Value != 42 || !errors.Is(a.Err, want) {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if s := g.Stats(); s.Fallbacks != 2 {
		t.Errorf("%+v", s)
	}
}

func TestFallbackHidesNoAnswerAndNoCallerThatHasGone(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	f := FallbackValue(g, 42)
	leaving, leave := context.WithCancel(t.Context())
	defer leave()
	for name, tc := range map[string]struct {
		ctx context.Context //nolint:containedctx // of a test
		err error
	}{
		"business error": {t.Context(), consumer.Permanent(errDown)},
		"not found":      {t.Context(), &statusError{status: 404}},
		"caller gone":    {leaving, errDown},
		"cancelled":      {t.Context(), context.Canceled},
	} {
		if a, err := f.Get(tc.ctx, func(context.Context) (int, error) {
			if tc.ctx == leaving {
				leave()
			}
			return 7, tc.err
		}); !errors.Is(err, tc.err) || a.Value == 42 {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	if a, err := f.Get(t.Context(), func(context.Context) (int, error) { return 7, nil }); err != nil || a.Value != 7 || a.Err != nil {
		t.Errorf("%+v, %v", a, err)
	}
	if s := g.Stats(); s.Fallbacks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestFallbackFunctionSeesTheErrorAndMayFail(t *testing.T) {
	t.Parallel()
	errNone := errors.New("nothing instead")
	f := FallbackFunc(newGuard(t, Config{}), func(_ context.Context, err error) (string, error) {
		if errors.Is(err, errDown) {
			return "instead", nil
		}
		return "", errNone
	})
	if a, err := f.Get(t.Context(), func(context.Context) (string, error) { return "", errDown }); err != nil || a.Value != "instead" {
		t.Errorf("%+v, %v", a, err)
	}
	other := errors.New("other")
	if _, err := f.Get(t.Context(), func(context.Context) (string, error) { return "", other }); !errors.Is(err, other) || !errors.Is(err, errNone) {
		t.Error(err)
	}
}

func TestLastGoodAnswerTellsItsAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := LastGood[string](newGuard(t, Config{}), time.Minute)
		down := func(context.Context) (string, error) { return "", errDown }
		if _, err := f.Get(t.Context(), down); !errors.Is(err, errDown) {
			t.Fatalf("answered without a good answer: %v", err)
		}
		if _, err := f.Get(t.Context(), func(context.Context) (string, error) { return "1.08", nil }); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if a, err := f.Get(t.Context(), down); err != nil || a.Value != "1.08" || a.Age != time.Minute || !errors.Is(a.Err, errDown) {
			t.Fatalf("%+v, %v", a, err)
		}
		pass(1)
		if _, err := f.Get(t.Context(), down); !errors.Is(err, errDown) {
			t.Fatalf("answered with one that is too old: %v", err)
		}
	})
}
