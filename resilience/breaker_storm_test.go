package resilience

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// ending is how a caller of the storm ends.
type ending int

const (
	succeeds ending = iota
	fails
	isCancelled
	panics
	hangs // for longer than a probe may
	endings
)

// storm is many callers at once.
type storm struct {
	breaker *Breaker
	through atomic.Int64
	refused atomic.Int64

	mu sync.Mutex
	// held are the permits of each half-open time that were not given back: never more than the truth.
	held map[uint64]int
	most int
}

// run has the callers begin together, and waits for all.
func (s *storm) run(callers []ending) {
	var begin, wg sync.WaitGroup
	begin.Add(1)
	for _, e := range callers {
		wg.Go(func() {
			begin.Wait()
			s.call(e)
		})
	}
	begin.Done()
	wg.Wait()
}

func (s *storm) call(e ending) {
	p, err := s.breaker.Allow()
	if err != nil {
		s.refused.Add(1)
		return
	}
	s.through.Add(1)
	s.hold(&p, 1)
	outcome := Neutral
	defer func() {
		if value := recover(); value != nil && value != e {
			panic(value)
		}
		if outcome == Neutral {
			s.hold(&p, -1)
		}
		p.Done(outcome, nil)
	}()
	switch e {
	case succeeds:
		outcome = Success
	case fails:
		outcome = Failure
	case panics:
		panic(e)
	case hangs:
		pass(2 * s.breaker.cfg.ProbeTimeout)
		outcome = Success
	default: // its caller has given up
	}
}

func (s *storm) hold(p *Permit, n int) {
	if p.probe == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[p.generation] += n
	s.most = max(s.most, s.held[p.generation])
}

func newStorm(t *rapid.T, cfg BreakerConfig) *storm {
	cfg.Name = "storm"
	b, err := NewBreaker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &storm{breaker: b, held: map[uint64]int{}}
}

// settled checks what must be true when nobody calls any more.
func (s *storm) settled(t *rapid.T) {
	st := s.breaker.Stats()
	if st.Running != 0 || len(s.breaker.probes) != 0 {
		t.Fatalf("permits were lost: %+v, %d probes", st, len(s.breaker.probes))
	}
	if s.most > s.breaker.cfg.Probes {
		t.Fatalf("%d probes at once, want at most %d", s.most, s.breaker.cfg.Probes)
	}
	if uint64(s.refused.Load()) != st.Rejected {
		t.Fatalf("%d calls were rejected, counted %d", s.refused.Load(), st.Rejected)
	}
}

func drawCallers(t *rapid.T, n int) []ending {
	return rapid.SliceOfN(rapid.Map(rapid.IntRange(0, int(endings)-1), func(i int) ending { return ending(i) }), n, n).Draw(t, "callers")
}

func TestFiftyCallersAtTheEdgeOfTripping(t *testing.T) {
	t.Parallel()
	check(t, func(t *rapid.T) {
		s := newStorm(t, BreakerConfig{Failures: 5, OpenFor: time.Minute})
		for range 4 {
			call(s.breaker, Failure)
		}
		callers := drawCallers(t, 50)
		s.run(callers)
		s.settled(t)
		st := s.breaker.Stats()
		if st.Opened > 1 {
			t.Fatalf("opened %d times", st.Opened)
		}
		if all := slices.Repeat([]ending{fails}, 50); slices.Equal(callers, all) && st.Opened != 1 {
			t.Fatal("did not open")
		}
		if st.State == Open && st.ConsecutiveFailures != 5 {
			t.Fatalf("opened after %d failures in a row", st.ConsecutiveFailures)
		}
		if sum := st.Successes + st.Failures + st.Neutral + st.Late - 4; sum != uint64(s.through.Load()) {
			t.Fatalf("%d calls were let through, %d reported: %+v", s.through.Load(), sum, st)
		}
	})
}

func TestFiftyCallersAtTheEndOfTheRecoveryTime(t *testing.T) {
	t.Parallel()
	check(t, func(t *rapid.T) {
		probes := rapid.IntRange(1, 5).Draw(t, "probes")
		s := newStorm(t, BreakerConfig{Failures: 1, Probes: probes, OpenFor: time.Minute})
		call(s.breaker, Failure)
		// Half of the callers come when the time is over to the nanosecond.
		pass(s.breaker.Stats().StaysOpen)
		s.run(drawCallers(t, 50))
		s.settled(t)
	})
}

// Whoever hung, panicked or gave up before: once the dependency works, the breaker closes.
func TestBreakerClosesAfterAnyStorm(t *testing.T) {
	t.Parallel()
	check(t, func(t *rapid.T) {
		s := newStorm(t, BreakerConfig{Failures: 3, Probes: rapid.IntRange(1, 5).Draw(t, "probes"), OpenFor: time.Second})
		for range rapid.IntRange(1, 4).Draw(t, "storms") {
			s.run(drawCallers(t, 50))
			pass(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
		}
		s.settled(t)
		pass(2 * time.Second)
		for range s.breaker.cfg.Probes {
			if _, err := s.breaker.Allow(); err != nil && !errors.Is(err, ErrOpen) {
				t.Fatal(err)
			}
		}
		pass(2 * s.breaker.cfg.ProbeTimeout) // those have hung
		pass(2 * time.Second)
		for range s.breaker.cfg.Probes {
			call(s.breaker, Success)
		}
		if state := s.breaker.State(); state != Closed {
			t.Fatalf("state %v after as many successes as probes", state)
		}
	})
}
