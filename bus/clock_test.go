package bus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The local clock is 42 minutes behind, or ahead: only what passes counts.
func TestClock_of_the_server(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{42 * time.Minute, -42 * time.Minute} {
		synctest.Test(t, func(t *testing.T) { testClock(t, ahead) })
	}
}

func testClock(t *testing.T, ahead time.Duration) {
	t.Helper()
	pass := func(d time.Duration) { <-time.After(d) } // by synctest's clock
	asked, down := 0, false
	c := Clock{ask: func(context.Context) (time.Time, error) {
		asked++
		if down {
			return time.Time{}, ErrUnavailable
		}
		pass(10 * time.Millisecond) // the question's way
		said := time.Now().Add(ahead)
		pass(10 * time.Millisecond) // the answer's
		return said, nil
	}}
	for range 100 {
		got, err := c.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if late := time.Now().Add(ahead).Sub(got); late < 0 || late > 10*time.Millisecond {
			t.Fatalf("the clock is %v behind the server", late)
		}
		pass(30 * time.Millisecond)
	}
	if asked > 4 {
		t.Fatalf("asked %d times in 3 s", asked)
	}
	pass(2 * clockKeep)
	down = true
	if got, err := c.Now(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("an old answer was used: %v, %v", got, err)
	}
}
