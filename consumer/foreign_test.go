package consumer_test

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// foreignStream is as somebody else may have made it: no lifetimes, no atomic
// batches, in memory.
func foreignStream(name, root string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{root + ">"}, Storage: jetstream.MemoryStorage, MaxMsgs: 1000,
	}
}

// TestForeignStream attaches a consumer to a stream that is not Farandole's.
func TestForeignStream(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js, root := s.bus.JetStream(), s.bus.Names().Root("legacy.")
	name := s.bus.Names().Prefix + "-LEGACY"
	stream, err := js.CreateStream(t.Context(), foreignStream(name, root))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := js.DeleteStream(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	cfg := config()
	cfg.From = &consumer.Stream{Name: name, Subjects: []string{root + "orders.>"}}
	var runs tally
	broken := new(atomic.Bool)
	p := s.start(cfg, poisoned(&runs, broken), nil)
	for _, id := range []string{"o-1", "bad", "o-1"} { // the last one is a copy
		m, err := s.bus.Message(bustest.Event(t, draft(id)))
		if err != nil {
			t.Fatal(err)
		}
		m.Subject = root + "orders.eu.new"
		m.Header.Del(nats.MsgIdHdr)
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.Publish(t.Context(), root+"orders.eu.garbage", []byte("not an event")); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() bool { st := p.Stats(); return st.Handled == 1 && st.Duplicate == 1 && st.Parked == 2 })
	reasons := map[string]int{}
	for _, l := range s.letters() {
		reasons[l.Reason]++
		if l.Origin.Stream != name {
			t.Errorf("letter is from stream %s, want %s", l.Origin.Stream, name)
		}
	}
	if want := map[string]int{event.ReasonExhausted: 1, event.ReasonDecode: 1}; !maps.Equal(reasons, want) {
		t.Errorf("letters by reason: %v, want %v", reasons, want)
	}
	broken.Store(false)
	if _, err := s.queue().Replay(t.Context(), dlq.Selection{Filter: dlq.Filter{Reason: event.ReasonExhausted}}, dlq.ReplayOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() bool { return runs.of("bad") == 4 })
	s.settled("payment")
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 4 || info.State.Consumers != 1 {
		t.Errorf("the foreign stream has %d messages and %d consumers, want 4 and ours", info.State.Msgs, info.State.Consumers)
	}
	if want := stream.CachedInfo().Config; fmt.Sprint(info.Config) != fmt.Sprint(want) {
		t.Errorf("the foreign stream's configuration is\n%+v, was\n%+v", info.Config, want)
	}
	if n := runs.of("o-1"); n != 1 {
		t.Errorf("o-1 ran %d times, want once", n)
	}
}

// While the other stream is quiet, its pull keeps no place that replays and long
// retries need.
func TestForeignStreamLeavesPlacesToRedrives(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js, root := s.bus.JetStream(), s.bus.Names().Root("legacy.")
	name := s.bus.Names().Prefix + "-LEGACY"
	if _, err := js.CreateStream(t.Context(), foreignStream(name, root)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := js.DeleteStream(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	cfg := config()
	cfg.InFlight = 1024
	cfg.From = &consumer.Stream{Name: name, Subjects: []string{root + "orders.>"}}
	const replicas = 4
	for range replicas {
		s.start(cfg, counting(new(tally)), nil)
	}
	for _, stream := range []string{name, s.bus.Names().EventsStream()} {
		bustest.Eventually(t, soon, func() error {
			durable, err := js.Consumer(t.Context(), stream, "payment")
			if err == nil && durable.CachedInfo().NumWaiting != replicas {
				err = fmt.Errorf("%d pulls wait on %s, want one of each replica", durable.CachedInfo().NumWaiting, stream)
			}
			return err
		})
	}
}
