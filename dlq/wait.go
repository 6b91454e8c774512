package dlq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/event"
)

const (
	// lookEvery is how often it is asked what has become of replays.
	lookEvery = 100 * time.Millisecond
	// lookAt is how many replays are asked about at once, the oldest ones: they end first.
	lookAt = 200
	// nobodyAfter is how long a consumer has to be away until nobody is there.
	nobodyAfter = 5 * time.Second
)

// Outcome is what has become of a replay.
type Outcome struct {
	// Status is Handled, FailedAgain, TakenBack, Discarded, or Waiting for all else.
	Status Status
	// At is when its consumer, or a relay, has last given a sign of it.
	At time.Time
}

// batches gives the numbers of letters that are replayed together: all at once, or for
// a canary 1, 10, 100 and so on.
func (o ReplayOptions) batches() func(left int) int {
	size := 1
	return func(left int) int {
		if !o.Canary {
			return left
		}
		n := min(size, left)
		size *= 10
		return n
	}
}

// await waits until the replays have come to an end. The error matches [ErrNobody] when
// those that are left wait for consumers of which no worker is there.
func (w *walk) await(ctx context.Context, store Store, sent []Result) error {
	watch := absences{store: store, away: map[event.Consumer]time.Time{}, sign: map[event.Consumer]time.Time{}}
	for len(sent) > 0 {
		left := sent[:0]
		for i, r := range sent {
			if i >= lookAt {
				left = append(left, sent[i:]...)
				break
			}
			o, err := store.Outcome(ctx, r)
			if err != nil {
				return err
			}
			if o.Status == Waiting {
				watch.saw(r, o)
				left = append(left, r)
				continue
			}
			if w.sum.Counts[r.Status]--; w.sum.Counts[r.Status] == 0 {
				delete(w.sum.Counts, r.Status)
			}
			r.Status = o.Status
			w.count(r)
		}
		if sent = left; len(sent) == 0 {
			return nil
		}
		if err := watch.look(ctx, sent); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookEvery):
		}
	}
	return nil
}

// tooMany says that more than the allowed share of a canary's step has failed again.
func (o ReplayOptions) tooMany(failed, sent int) error {
	if !o.Canary || sent == 0 || float64(failed) <= o.MaxFailed*float64(sent) {
		return nil
	}
	return fmt.Errorf("%w: %d of the last %d, and %g %% may", ErrFailedAgain, failed, sent, 100*o.MaxFailed)
}

// absences finds out whether anybody is there for what is waited for.
type absences struct {
	store  Store
	looked time.Time
	away   map[event.Consumer]time.Time // since when no worker was seen
	sign   map[event.Consumer]time.Time // the last one of a replay
}

// saw takes note of a replay that has not ended.
func (a *absences) saw(r Result, o Outcome) {
	c := consumerOf(r.ID)
	if o.At.After(a.sign[c]) {
		a.sign[c] = o.At
		delete(a.away, c) // it has done something
	}
}

// look asks for workers once a second.
func (a *absences) look(ctx context.Context, left []Result) error {
	now := time.Now()
	if now.Sub(a.looked) < time.Second {
		return nil
	}
	a.looked = now
	var nobody []string
	waits := map[event.Consumer]bool{}
	for _, r := range left {
		waits[consumerOf(r.ID)] = true
	}
	for c := range waits {
		n, err := a.store.Workers(ctx, c)
		switch {
		case err != nil || n > 0: // nobody knows better
			delete(a.away, c)
		case a.away[c].IsZero():
			a.away[c] = now
		case now.Sub(a.away[c]) >= nobodyAfter:
			nobody = append(nobody, string(c))
		}
	}
	if len(nobody) < len(waits) {
		return nil
	}
	slices.Sort(nobody)
	return fmt.Errorf("%w: no worker of %s is there", ErrNobody, strings.Join(nobody, ", "))
}

func consumerOf(id string) event.Consumer {
	c, _, _ := strings.Cut(id, ".")
	return event.Consumer(c)
}

// Outcome says what has become of a replay that [Stream.Replay] has sent.
func (s *Stream) Outcome(ctx context.Context, r Result) (Outcome, error) {
	consumer, key, err := parseID(r.ID)
	if err != nil {
		return Outcome{}, err
	}
	m, known, err := s.mark(ctx, consumer, key)
	o := Outcome{Status: Waiting, At: m.At}
	switch {
	case err != nil:
		return Outcome{}, err
	case known && m.State == StateDone:
		o.Status = Handled
	case known && m.State == StateDiscarded:
		o.Status = Discarded
	case known && m.State == StateParked && m.Replay >= r.Replay:
		// The ledger of one that was taken back looks like that of one that has failed.
		l, err := s.find(ctx, r.ID)
		switch {
		case errors.Is(err, ErrNotFound):
			o.Status = Discarded
		case err != nil:
			return Outcome{}, err
		case l.entry.Count > r.count:
			o.Status = FailedAgain
		default:
			o.Status = TakenBack
		}
	}
	return o, nil
}

// Workers returns how many processes run a consumer, paused or not.
func (s *Stream) Workers(ctx context.Context, c event.Consumer) (int, error) {
	if s.marks == nil {
		return 0, fmt.Errorf("dlq: workers of %s: %w", c, ErrRefused)
	}
	return s.marks.Workers(ctx, c)
}
