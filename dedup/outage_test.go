package dedup_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// Without the server nothing is claimed. When it is back, the claims that the
// outage caught are taken up by their worker, and no crash is counted.
func TestKV_outage(t *testing.T) {
	t.Parallel()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: server.URL(), PublishTimeout: 3 * time.Second}), topology.Config{})
	l, held, fresh := newKV(t, b, dedup.Config{}), event.NewEventKey("/shop", "held"), event.NewEventKey("/shop", "fresh")
	c, err := l.Claim(t.Context(), claimOf(held))
	if err != nil {
		t.Fatal(err)
	}

	server.Stop(t)
	if c, err := l.Claim(t.Context(), claimOf(fresh)); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("claim: got %+v, %v; want ErrUnavailable", c, err)
	}
	if err := l.Extend(t.Context(), c); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("extend: got %v, want ErrUnavailable", err)
	}
	if err := l.Complete(t.Context(), c, nil); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("complete: got %v, want ErrUnavailable", err)
	}
	if err := l.Release(t.Context(), c, nil, nil); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("release: got %v, want ErrUnavailable", err)
	}
	server.Restart(t)

	for _, k := range []event.EventKey{held, fresh} {
		bustest.Eventually(t, soon, func() error {
			again, err := l.Claim(t.Context(), claimOf(k))
			switch {
			case err != nil:
				return err
			case again.Status == dedup.Done: // what was sent before the outage can arrive after it
				return nil
			case again.Status != dedup.Claimed:
				return errors.New(again.Status.String())
			case again.Crashes != 0:
				t.Errorf("%d crashes were counted", again.Crashes)
			}
			return l.Complete(t.Context(), again, nil)
		})
	}
	if _, known, err := l.Mark(t.Context(), "payment", held); err != nil || !known {
		t.Fatalf("mark: known %v, %v", known, err)
	}
}
