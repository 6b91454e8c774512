package dlq_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// consumes is a consumer that handles each replay as soon as it is reported, but for
// events that fail, which it parks again.
func (f *fixture) consumes(fails func(n int) bool, after func(dlq.Result)) func(dlq.Result) {
	number := map[string]int{}
	for n := range 200 {
		number[id(n)] = n
	}
	return func(r dlq.Result) {
		if r.Status == dlq.Replayed {
			n := number[r.ID]
			if fails(n) {
				again := f.event(n)
				again.Header["dlq-replay"] = []string{"1"}
				again.Subject = f.names.RedriveSubject("payment", again.Subject)
				f.parkAgain("payment", n, again, event.ReasonPermanent)
			} else {
				f.handle("payment", r.Replay, n)
			}
		}
		if after != nil {
			after(r)
		}
	}
}

func TestReplay_that_waits_says_what_has_become_of_each_event(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 6 {
		f.park("payment", n)
	}
	ends := map[dlq.Status]int{}
	report := f.consumes(func(n int) bool { return n < 2 }, func(r dlq.Result) { ends[r.Status]++ })
	sum, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{Wait: true}, report)
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Handled: 4, dlq.FailedAgain: 2})
	if ends[dlq.Replayed] != 6 || ends[dlq.Handled] != 4 || ends[dlq.FailedAgain] != 2 {
		t.Errorf("reported %v", ends)
	}
}

func TestReplay_that_waits_for_nobody_says_so(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	f.ledger.leave()
	begin := time.Now()
	sum, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{Wait: true}, nil)
	if !errors.Is(err, dlq.ErrNobody) || time.Since(begin) < 5*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	f.expect(sum, map[dlq.Status]int{dlq.Waiting: 1})
	// What is being replayed already is waited for, too.
	ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, errors.New("no more time"))
	defer stop()
	sum, err = f.queue.Replay(ctx, dlq.Selection{IDs: []string{id(1)}}, dlq.ReplayOptions{Wait: true}, nil)
	if !errors.Is(err, context.DeadlineExceeded) && (err == nil || err.Error() != "dlq: stopped after 1 of 1: no more time") {
		t.Errorf("in no time: %v", err)
	}
	f.expect(sum, map[dlq.Status]int{dlq.Waiting: 1})
	f.takeBack(1, dlq.TakenBack)
}

func TestReplay_waits_for_what_another_takes_back(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.park("payment", 1)
	sum, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{Wait: true}, func(r dlq.Result) {
		if r.Status == dlq.Replayed {
			f.takeBack(1, dlq.TakenBack)
		}
	})
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.TakenBack: 1})
}

func TestCanary_goes_on_only_when_those_before_were_handled(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 130 {
		f.park("payment", n)
	}
	var steps []int
	step := 0
	count := func(r dlq.Result) {
		if r.Status == dlq.Replayed {
			step++
		} else if step > 0 {
			steps = append(steps, step)
			step = 0
		}
	}
	// One of the step of ten fails: as many as may.
	sum, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{Canary: true, MaxFailed: 0.1},
		f.consumes(func(n int) bool { return n == 5 }, count))
	f.check(err)
	f.expect(sum, map[dlq.Status]int{dlq.Handled: 129, dlq.FailedAgain: 1})
	if len(steps) != 4 || steps[0] != 1 || steps[1] != 10 || steps[2] != 100 || steps[3] != 19 {
		t.Errorf("steps of %v", steps)
	}
}

func TestCanary_stops_when_too_many_fail_again(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 30 {
		f.park("payment", n)
	}
	sum, err := f.queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{Canary: true, MaxFailed: 0.1},
		f.consumes(func(n int) bool { return n == 5 || n == 6 }, nil))
	if !errors.Is(err, dlq.ErrFailedAgain) || err.Error() != "dlq: stopped after 11 of 30: dlq: too many have failed again: 2 of the last 10, and 10 % may" {
		t.Errorf("%v", err)
	}
	f.expect(sum, map[dlq.Status]int{dlq.Handled: 9, dlq.FailedAgain: 2})
	if sum.Selected != 30 {
		t.Errorf("%d selected", sum.Selected)
	}
}

func TestReplay_of_the_first_ones(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 5 {
		f.park("payment", n)
	}
	for want := range 3 { // those that are being replayed do not count
		sum, results := f.replay(dlq.Selection{All: true, First: 2}, dlq.ReplayOptions{})
		f.expect(sum, map[dlq.Status]int{dlq.Replayed: min(2, 5-2*want)})
		if results[0].ID != id(2*want) {
			t.Errorf("first is %s, want %s", results[0].ID, id(2*want))
		}
	}
}
