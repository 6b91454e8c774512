package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/state"
	"github.com/farandole/farandole/topology"
)

// count is the document of these tests.
type count struct {
	N int `json:"n"`
}

// counter handles orders by what f makes of the document "count".
type counter struct {
	*process
	store *state.Store[count]
	runs  tally
}

// counter runs a consumer whose handler reads the document, on a connection of
// its own that tap may come between.
func (s *system) counter(tap *wiretap.Tap, f func(c *counter, e event.Event, d state.Document[count]) (consumer.Step, error)) *counter {
	s.tb.Helper()
	s.kind = partitionKind
	if tap != nil {
		whole := s.server
		s.server = tap
		defer func() { s.server = whole }()
	}
	c := &counter{}
	registry := handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
		c.runs.add(e.ID())
		d, err := c.store.Get(ctx, "count")
		if err != nil {
			return consumer.Step{}, err
		}
		return f(c, e, d)
	})
	cfg := config()
	cfg.Retry.MaxAttempts = 1
	c.process = s.start(cfg, registry, func(p *process, l dedup.Ledger) dedup.Ledger {
		var err error
		if c.store, err = state.Of[count](p.bus, l.(*dedup.Partitions), "payment"); err != nil {
			s.tb.Fatal(err)
		}
		return l
	})
	return c
}

// increment counts, or deletes the document for an event whose id says so.
func increment(_ *counter, e event.Event, d state.Document[count]) (consumer.Step, error) {
	if strings.HasPrefix(e.ID(), "delete") {
		return consumer.Step{State: []state.Change{d.Delete()}}, nil
	}
	return consumer.Step{State: []state.Change{d.Put(count{d.Value.N + 1})}}, nil
}

// handles publishes events and waits until the consumer has handled so many in all.
func (c *counter) handles(total uint64, ids ...string) {
	c.s.tb.Helper()
	for _, id := range ids {
		d := draft("k")
		d.ID = id
		c.s.publish(d)
	}
	bustest.Eventually(c.s.tb, soon, func() bool { return c.Stats().Handled == total })
}

// is checks what the document holds.
func (c *counter) is(want int) {
	c.s.tb.Helper()
	d, err := c.store.Committed(c.s.tb.Context(), "count")
	if err != nil || d.Value.N != want {
		c.s.tb.Errorf("the document is %+v (%v), want %d", d.Value, err, want)
	}
}

// goesOn checks that an event was handled in a few runs.
func (c *counter) goesOn(id string) {
	c.s.tb.Helper()
	if n := c.runs.of(id); n > 4 {
		c.s.tb.Errorf("%s ran %d times", id, n)
	}
	bustest.Eventually(c.s.tb, soon, c.Health)
}

// What a process remembers of a document does not outlive the document.
func TestDocument_is_made_again_after_its_deletion(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	c := s.counter(nil, increment)
	c.handles(3, "a", "b", "delete")
	stream, err := s.bus.JetStream().Stream(t.Context(), s.bus.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	// The trace of a deletion ends after a minute: now.
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(s.bus.Names().StateSubject("payment", "count"))); err != nil {
		t.Fatal(err)
	}
	c.handles(4, "again")
	c.is(1)
	c.goesOn("again")
}

func TestDocument_in_a_stream_made_anew(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	c := s.counter(nil, increment)
	c.handles(4, "a", "b", "c", "d")
	if err := s.bus.JetStream().DeleteStream(t.Context(), s.bus.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Provision(t.Context(), s.bus, topology.New(s.bus.Names(), topology.Config{})); err != nil {
		t.Fatal(err)
	}
	c.handles(5, "again")
	c.is(1)
	c.goesOn("again")
}

// A single server can lose the end of its stream in a power failure.
func TestDocument_of_a_lost_tail(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	server := bustest.StartServer(t, bustest.ServerConfig{StoreDir: dir})
	b := bustest.Connect(t, bus.Config{URL: server.URL(), Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{})
	s := &system{tb: t, bus: b, url: server.URL()}
	c := s.counter(nil, increment)
	c.handles(2, "a", "b")
	stop := func() {
		server.Stop(t)
		bustest.Eventually(t, soon, func() bool { return b.Health() != nil && c.Health() != nil }) // they have noticed
	}
	stop()
	synced := filepath.Join(t.TempDir(), "synced")
	if err := os.CopyFS(synced, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	bustest.Eventually(t, soon, func() error { return errors.Join(b.Health(), c.Health()) })
	c.handles(6, "c", "d", "e", "f")
	stop()
	if err := errors.Join(os.RemoveAll(dir), os.Rename(synced, dir)); err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	bustest.Eventually(t, soon, b.Health)
	c.handles(7, "again")
	c.is(3)
	c.goesOn("again")
}

// A document that is never as the handler has seen it: the consumer says so, and
// in the end it is a failure like any other.
func TestDocument_that_never_rests(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	pages, err := dedup.NewPartitions(s.bus, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	other := deduptest.NewOwner(pages, 0)
	var n atomic.Int64
	c := s.counter(nil, func(_ *counter, _ event.Event, d state.Document[count]) (consumer.Step, error) {
		// Somebody else is always faster.
		subject := s.bus.Names().StateSubject("payment", "count")
		seen, err := other.Document(t.Context(), subject)
		if err != nil {
			return consumer.Step{}, err
		}
		claim, err := other.Claim(t.Context(), dedup.Request{
			Consumer: "other", Key: event.NewEventKey("/other", fmt.Sprint(n.Add(1))), Lease: time.Minute,
		})
		if err == nil {
			put := dedup.PutDocument(subject, []byte(`{"n":1}`), seen.Version)
			err = other.Complete(t.Context(), claim, []*nats.Msg{put})
		}
		return consumer.Step{State: []state.Change{d.Put(count{7})}}, err
	})
	s.publish(draft("k"))
	bustest.Eventually(t, soon, func() bool {
		err := c.Health()
		return errors.Is(err, consumer.ErrUnhealthy) && errors.Is(err, dedup.ErrStale)
	})
	letter := s.letter()
	if letter.Reason != event.ReasonExhausted || !strings.Contains(fmt.Sprint(letter.Attempts), "state has changed") {
		t.Errorf("parked as %s with %+v, want attempts that name the state", letter.Reason, letter.Attempts)
	}
	bustest.Eventually(t, soon, c.Health)
}

// Of a document whose step was stored in part nothing is made, until a person has
// put it right.
func TestDocument_of_half_a_batch(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	write := func(n int, header nats.Header) {
		_, err := s.bus.JetStream().PublishMsg(t.Context(), &nats.Msg{
			Subject: s.bus.Names().StateSubject("payment", "count"), Header: header, Data: fmt.Appendf(nil, `{"n":%d}`, n),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write(5, nats.Header{"Farandole-Step": {"payment.99.page 86400"}})
	c := s.counter(nil, increment)
	s.publish(draft("k"))
	bustest.Eventually(t, soon, func() bool { return c.Stats().Released >= 1 })
	bustest.Eventually(t, soon, func() bool {
		err := c.Health()
		return errors.Is(err, consumer.ErrUnhealthy) && errors.Is(err, dedup.ErrHalfStored)
	})
	write(7, nats.Header{"Nats-TTL": {"never"}})
	bustest.Eventually(t, soon, func() bool { return c.Stats().Handled == 1 })
	c.is(8)
	if st := c.Stats(); st.Parked+st.Retried > 0 {
		t.Errorf("stats %+v, want no attempt spent", st)
	}
	bustest.Eventually(t, soon, c.Health)
}

// A verdict is not made of a change that its own process has not committed, and
// never will: neither an error, nor a step that changes nothing.
func TestVerdict_on_what_is_not_committed(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]error{
		"permanent": consumer.Permanent(errors.New("there is a count already")),
		"skip":      consumer.Skip,
		"failure":   errors.New("there is a count already"),
		"empty":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.publishTimeout = time.Second
			lost := wiretap.Nth(1, wiretap.Drop, func(f []byte) bool { return bytes.Contains(f, []byte("Nats-Batch-Commit: 1")) })
			seen := make(chan struct{})
			var judged atomic.Int64
			c := s.counter(wiretap.New(bustest.Server(t), lost, nil), func(c *counter, e event.Event, d state.Document[count]) (consumer.Step, error) {
				switch {
				case e.ID() == "first" && c.runs.of("first") == 1: // its batch stays without an answer
					defer close(seen)
				case e.ID() == "second" && c.runs.of("second") == 1:
					if d.Value.N != 1 {
						return consumer.Step{}, consumer.Permanent(fmt.Errorf("it read %+v, not what is under way", d.Value))
					}
					return consumer.Step{}, verdict
				case e.ID() == "second":
					judged.Store(int64(d.Value.N) + 1)
				}
				return consumer.Step{State: []state.Change{d.Put(count{d.Value.N + 1})}}, nil
			})
			first, second := draft("one"), draft("two")
			first.ID, second.ID = "first", "second"
			s.publish(first)
			<-seen
			bustest.Eventually(t, soon, func() bool {
				d, err := c.store.Get(t.Context(), "count")
				return err == nil && d.Exists
			})
			s.publish(second)
			bustest.Eventually(t, soon, func() bool { return c.Stats().Handled == 2 })
			c.is(2)
			if st := c.Stats(); st.Parked+st.Retried+st.Skipped > 0 || judged.Load() == 0 {
				t.Errorf("stats %+v, judged on %d: want the second one run again", st, judged.Load()-1)
			}
		})
	}
}

// Nor is it made of what others have changed since.
func TestVerdict_on_what_is_old(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]error{
		"permanent": consumer.Permanent(errors.New("there is no count")),
		"skip":      consumer.Skip,
		"empty":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			c := s.counter(nil, func(c *counter, _ event.Event, d state.Document[count]) (consumer.Step, error) {
				if d.Exists {
					return consumer.Step{State: []state.Change{d.Put(count{d.Value.N + 1})}}, nil
				}
				if err := c.store.Create(t.Context(), "count", count{1}); err != nil {
					return consumer.Step{}, err
				}
				return consumer.Step{}, verdict
			})
			c.handles(1, "a")
			c.is(2)
			if st := c.Stats(); c.runs.of("a") != 2 || st.Parked+st.Skipped > 0 {
				t.Errorf("%d runs, stats %+v", c.runs.of("a"), st)
			}
		})
	}
}
