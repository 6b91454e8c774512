package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

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
	bustest.Eventually(t, 10*time.Second, func() bool { return runs.of("cold") == 1 })
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
