package bustest

import (
	"errors"
	"testing"
	"time"
)

// The time between two looks grows to a tenth of what has passed, within these:
// what comes soon is seen soon, and what takes long costs little.
const (
	leastStep = 5 * time.Millisecond
	mostStep  = 50 * time.Millisecond
)

// Eventually looks at check every 5 to 50 ms until it holds, and fails the test
// when it does not within the given time. A check is a func() bool or a
// func() error; the last error is reported.
func Eventually[C func() bool | func() error](tb testing.TB, within time.Duration, check C) {
	tb.Helper()
	begin := time.Now()
	for {
		err := holds(check)
		if err == nil {
			return
		}
		passed := time.Since(begin)
		if passed > within {
			tb.Fatalf("bustest: not within %s: %v", within, err)
		}
		<-time.After(min(max(passed/10, leastStep), mostStep))
	}
}

func holds(check any) error {
	switch check := check.(type) {
	case func() error:
		return check()
	case func() bool:
		if !check() {
			return errors.New("condition does not hold")
		}
	}
	return nil
}
