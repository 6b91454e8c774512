package pauses_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/topology"
)

const within = time.Minute

func newBus(t *testing.T) *bus.Bus {
	t.Helper()
	return bustest.NewBus(t)
}

func TestChangesOfManyAreAllKept(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	var all sync.WaitGroup
	const writers = 8
	for i := range writers {
		store := pauses.New(b) // each process has its own
		all.Go(func() {
			_, err := store.Update(t.Context(), "payment", func(d *pauses.Document) bool {
				d.SetBreaker(fmt.Sprint(i), pauses.Breaker{State: pauses.Open})
				return true
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	d, err := pauses.New(b).Get(t.Context(), "payment")
	if err != nil || len(d.Breakers) != writers {
		t.Errorf("%d of %d changes are kept, %v", len(d.Breakers), writers, err)
	}
	seen := 0
	err = pauses.New(b).Each(t.Context(), func(c event.Consumer, d pauses.Document) error {
		if seen++; c != "payment" || len(d.Breakers) != writers {
			t.Errorf("%s: %+v", c, d)
		}
		return nil
	})
	if err != nil || seen != 1 {
		t.Errorf("%d documents, %v", seen, err)
	}
}

func TestFollowingGoesOnInABucketMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen, failed := make(chan pauses.Document, 100), make(chan error, 100)
	var run sync.WaitGroup
	run.Go(func() {
		pauses.New(b).Follow(ctx, "payment", func(d pauses.Document) { seen <- d }, func(err error) { failed <- err })
	})
	defer run.Wait()
	defer cancel()
	if d := next(t, seen); d.Pause != nil {
		t.Fatalf("paused at first: %+v", d)
	}
	if err := b.JetStream().DeleteStream(t.Context(), "KV_"+b.Names().Bucket(event.PausesBucket)); err != nil {
		t.Fatal(err)
	}
	for errors.Is(next(t, failed), bus.ErrUnavailable) { // the watch ends first
	}
	bustest.Provision(t, b, topology.Config{})
	_, err := pauses.New(b).Update(t.Context(), "payment", func(d *pauses.Document) bool {
		d.Pause = &pauses.Pause{By: "ops"}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for d := next(t, seen); d.Pause == nil || d.Pause.By != "ops"; d = next(t, seen) {
	}
}

func next[T any](t *testing.T, from chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(within):
		t.Fatal("nothing came")
	}
	return v
}

func TestHeldUntilIsTheLastOfAll(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	for name, tt := range map[string]struct {
		d    pauses.Document
		want time.Time
	}{
		"nothing":             {pauses.Document{}, time.Time{}},
		"operator":            {pauses.Document{Pause: &pauses.Pause{Until: at(1)}}, at(1)},
		"open breaker":        {pauses.Document{Pause: &pauses.Pause{Until: at(1)}, Breakers: map[string]pauses.Breaker{"a": {State: pauses.Open, Until: at(2)}}}, at(2)},
		"half-open delivers":  {pauses.Document{Breakers: map[string]pauses.Breaker{"a": {State: pauses.HalfOpen, Until: at(2)}}}, time.Time{}},
		"the longer operator": {pauses.Document{Pause: &pauses.Pause{Until: at(3)}, Breakers: map[string]pauses.Breaker{"a": {State: pauses.Open, Until: at(2)}}}, at(3)},
	} {
		if got := tt.d.HeldUntil(); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
