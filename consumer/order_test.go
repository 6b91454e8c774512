package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// A key with a backlog many times what the process holds leaves other keys
// their places, and keeps its order.
func TestHotKeyLeavesPlacesToOthers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.HandlerTimeout, cfg.Lease = 30*time.Second, 30*time.Second
	const backlog = 500
	drafts := make([]event.Draft, backlog, backlog+1)
	for i := range drafts {
		drafts[i] = placed.New("hot", orderData{})
		drafts[i].ID = fmt.Sprintf("hot-%03d", i)
	}
	events := s.publish(append(drafts, draft("cold"))...)
	let := make(chan struct{})
	var mu sync.Mutex
	var order []string
	var runs tally
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		if e.ID() == "cold" {
			return consumer.Step{}, nil
		}
		<-let
		mu.Lock()
		defer mu.Unlock()
		order = append(order, e.ID())
		return consumer.Step{}, nil
	}), nil)
	bustest.Eventually(t, soon, func() bool { return runs.of("cold") == 1 })
	if n := p.Stats().InFlight; n < backlog {
		t.Errorf("%d events are here, want all of the backlog", n)
	}
	close(let)
	s.settled("payment")
	runs.wantOnce(t, events)
	for i, id := range order {
		if want := fmt.Sprintf("hot-%03d", i); id != want {
			t.Fatalf("%s ran where %s should have", id, want)
		}
	}
	if st := p.Stats(); st.Handled != backlog+1 || st.Released != 0 {
		t.Errorf("stats = %+v, want all handled and none given back", st)
	}
}

func TestManyEventsOfManyKeysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var failed tally
	last := make(map[event.Key]int64)
	lock := make(chan struct{}, 1)
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, o orderData) (consumer.Step, error) {
		lock <- struct{}{}
		defer func() { <-lock }()
		key := event.PartitionKey(e)
		if o.Amount < last[key] {
			t.Errorf("%s: %d runs after %d", key, o.Amount, last[key])
		}
		last[key] = o.Amount
		if o.Amount%7 == 0 && failed.add(e.ID()) == 1 {
			return consumer.Step{}, errFlaky
		}
		return consumer.Step{}, nil
	})
	cfg := config()
	cfg.InFlight = 256
	p := s.start(cfg, r, nil)
	const keys, each = 10, 30
	var pending []*bus.Pending
	for i := range each {
		for k := range keys {
			e, err := s.bus.Seal(placed.New(event.Key(fmt.Sprint("k-", k)), orderData{Amount: int64(i + 1)}))
			if err != nil {
				t.Fatal(err)
			}
			sent, err := s.bus.PublishAsync(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			pending = append(pending, sent)
		}
	}
	for _, sent := range pending {
		if _, err := sent.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.settled("payment")
	if st := p.Stats(); st.Handled != keys*each || st.Retried != keys*(each/7) {
		t.Errorf("stats = %+v, want %d handled and %d retried", st, keys*each, keys*(each/7))
	}
	// Nothing is kept of keys that rest.
	bustest.Eventually(t, soon, func() bool { return consumer.Lanes(p.Consumer) == 0 })
}

func TestRetry_holds_its_key(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	var mu sync.Mutex
	var order []string
	r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, e.ID())
		if e.ID() == "created" && runs.add(e.ID()) < 3 {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 300*time.Millisecond)
		}
		return consumer.Step{}, nil
	})
	s.start(config(), r, nil)
	for _, id := range []string{"created", "changed", "cancelled"} {
		d := draft(id)
		d.Key = "o-1"
		s.publish(d)
	}
	s.publish(draft("other"))
	s.settled("payment")
	mu.Lock()
	defer mu.Unlock()
	if i := slices.Index(order, "other"); i < 0 || i > 2 {
		t.Errorf("order is %v: another key waited for the retry", order)
	}
	order = slices.DeleteFunc(order, func(id string) bool { return id == "other" })
	if want := []string{"created", "created", "created", "changed", "cancelled"}; !slices.Equal(order, want) {
		t.Errorf("order is %v, want %v", order, want)
	}
}

// TestReplayed_older_event_is_closed_by_its_version: order is not kept
// across a replay, so a handler that depends on it looks at versions.
func TestReplayed_older_event_is_closed_by_its_version(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var mu sync.Mutex
	version, mended := int64(0), false
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, o orderData) (consumer.Step, error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case e.ID() == "v1" && !mended:
			return consumer.Step{}, consumer.Permanent(errFlaky)
		case o.Amount <= version:
			return consumer.Step{}, consumer.Skip
		}
		version = o.Amount
		return consumer.Step{}, nil
	})
	p := s.start(config(), r, nil)
	for i, id := range []string{"v1", "v2"} {
		d := placed.New("o-1", orderData{Amount: int64(i + 1)})
		d.ID = id
		s.publish(d)
	}
	s.settled("payment")
	s.letter()
	mu.Lock()
	mended = true
	mu.Unlock()
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Skipped == 1 })
	s.settled("payment")
	mu.Lock()
	defer mu.Unlock()
	if version != 2 {
		t.Errorf("version is %d after the replay, want 2", version)
	}
	if n := len(s.letters()); n != 0 {
		t.Errorf("%d dead letters left, want none", n)
	}
}
