package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
)

// Status is where a shared breaker stands.
type Status struct {
	Changed

	// State is closed, open or half-open.
	State string `json:"state"`
	// Prober is the process that probes, while the breaker is half-open.
	Prober string `json:"prober,omitempty"`
}

func statusOf(c event.Consumer, name string, b pauses.Breaker) Status {
	return Status{Changed: changed(c, name, b), State: string(b.State), Prober: b.Prober}
}

// List returns the shared breakers of all consumers, in no order. Errors match
// [bus.ErrNoStream] if there is no bucket of pauses, [bus.ErrDenied],
// [bus.ErrUnavailable] or [bus.ErrClosed].
func List(ctx context.Context, b *bus.Bus) ([]Status, error) {
	found := map[event.Consumer]pauses.Document{} // one that changes meanwhile may come twice
	err := pauses.New(b).Each(ctx, func(c event.Consumer, d pauses.Document) error {
		found[c] = d
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("fleet: list breakers: %w", err)
	}
	all := []Status{}
	for c, d := range found {
		for name, s := range d.Breakers {
			all = append(all, statusOf(c, name, s))
		}
	}
	return all, nil
}

// Force sets the state of a shared breaker, whatever its dependency does. All processes
// of the consumer follow, also those that start later.
type Force struct {
	Consumer event.Consumer
	Breaker  string
	// By is who asks, as in "ops@host". Required.
	By string
	// Why is for people. Defaults to "".
	Why string
}

// Open opens the breaker for so long, by the server's clock. Then it is probed. With 0 it
// stays open until somebody closes it. It returns where the breaker stood before and
// stands now. Errors match [ErrConfig], [ErrUnknown], or are those of [List]; one that
// comes with a state says that the breaker is open and its event is not published.
func (f Force) Open(ctx context.Context, b *bus.Bus, d time.Duration) (before, after Status, err error) {
	if d < 0 {
		return Status{}, Status{}, fmt.Errorf("%w: open for %v: want more than 0, or 0 for until it is closed", ErrConfig, d)
	}
	return f.set(ctx, b, func(s *pauses.Breaker, now time.Time) bool {
		if s.State == pauses.Closed {
			s.Opened++
		}
		s.State, s.Until = pauses.Open, time.Time{}
		if d > 0 {
			s.Until = now.Add(d).UTC().Truncate(time.Millisecond)
		}
		return true
	})
}

// Close closes the breaker; it may open again by itself. One that is closed stays as it
// is. Results are those of [Force.Open].
func (f Force) Close(ctx context.Context, b *bus.Bus) (before, after Status, err error) {
	return f.set(ctx, b, func(s *pauses.Breaker, _ time.Time) bool {
		was := s.State
		s.State, s.Until = pauses.Closed, time.Time{}
		return was != pauses.Closed
	})
}

// set changes what is shared, and publishes the event.
func (f Force) set(ctx context.Context, b *bus.Bus, change func(s *pauses.Breaker, now time.Time) bool) (before, after Status, err error) {
	fail := func(err error) (Status, Status, error) {
		return Status{}, Status{}, fmt.Errorf("fleet: breaker %s of consumer %s: %w", f.Breaker, f.Consumer, err)
	}
	if f.By == "" {
		return fail(fmt.Errorf("%w: By is required", ErrConfig))
	}
	store := pauses.New(b)
	now, err := store.Now(ctx)
	if err != nil {
		return fail(err)
	}
	var old, s pauses.Breaker
	wrote := false
	_, err = store.Update(ctx, f.Consumer, func(d *pauses.Document) bool {
		old = d.Breakers[f.Breaker]
		s = pauses.Breaker{
			State: old.State, Forced: true, Opened: old.Opened, Term: old.Term + 1, At: now.UTC(), By: f.By, Why: cut(f.Why),
		}
		if wrote = old.State != "" && change(&s, now); wrote {
			d.Breakers[f.Breaker] = s
		}
		return wrote
	})
	switch {
	case err != nil:
		return fail(err)
	case old.State == "":
		return fail(ErrUnknown)
	case !wrote:
		s = old
	}
	before, after = statusOf(f.Consumer, f.Breaker, old), statusOf(f.Consumer, f.Breaker, s)
	if wrote {
		if err := publish(ctx, b, f.Consumer, f.Breaker, s, ""); err != nil {
			_, _, err = fail(fmt.Errorf("it is %s, but the event that tells of it is not published: %w", s.State, err))
			return before, after, err
		}
	}
	return before, after, nil
}

// Name names the breaker among those of all consumers, as in "payment/gateway".
func (c Changed) Name() string { return string(c.Consumer) + "/" + c.Breaker }
