package bustest

import (
	"errors"
	"testing"
	"time"
)

const pollStep = 10 * time.Millisecond

// Eventually polls check every 10 ms until it holds, and fails the test when
// it does not within the given time. A check is a func() bool or a func() error;
// the last error is reported.
func Eventually[C func() bool | func() error](tb testing.TB, within time.Duration, check C) {
	tb.Helper()
	ticker := time.NewTicker(pollStep)
	defer ticker.Stop()
	deadline := time.Now().Add(within)
	for {
		err := holds(check)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("bustest: not within %s: %v", within, err)
		}
		<-ticker.C
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
