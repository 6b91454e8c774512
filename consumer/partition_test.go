package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

func TestPartitions_handle_each_event_once_in_order_of_its_key(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	const keys, each = 20, 5
	var mu sync.Mutex
	seen := map[event.Key][]int64{}
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, o orderData) (consumer.Step, error) {
		mu.Lock()
		defer mu.Unlock()
		k := event.PartitionKey(e)
		seen[k] = append(seen[k], o.Amount)
		return pay(e), nil
	})
	publish := func(from int64) {
		for i := range int64(each) {
			for k := range keys {
				s.publish(placed.New(event.Key(fmt.Sprintf("ord-%d", k)), orderData{Amount: from + i}))
			}
		}
	}
	publish(0)
	first := s.start(config(), r, nil)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == keys*each })
	second := s.start(config(), r, nil)
	publish(each)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 2*keys*each })
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	publish(2 * each)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 3*keys*each })
	second.crash()
	publish(3 * each)
	s.start(config(), r, nil)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 4*keys*each })
	for k, amounts := range seen {
		for i, a := range amounts {
			if a != int64(i) {
				t.Fatalf("%s: handled %v", k, amounts)
			}
		}
	}
}

func TestPartitions_type_that_comes_later_gets_its_old_events(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	var orders, reservations tally
	publish := func(from, n int) {
		for i := from; i < from+n; i++ {
			k := event.Key(fmt.Sprintf("ord-%d", i))
			s.publish(placed.New(k, orderData{}), reserved.New(k, orderData{}))
		}
	}
	publish(0, 20)
	old := s.start(config(), counting(&orders), nil)
	s.settled("payment")
	if err := old.stop(); err != nil {
		t.Fatal(err)
	}
	publish(20, 5)
	both := counting(&orders)
	consumer.Handle(both, reserved, func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
		reservations.add(e.ID())
		return consumer.Step{}, nil
	})
	for range 2 { // the second time nothing is behind any more
		p := s.start(config(), both, nil)
		bustest.Eventually(t, soon, func() error {
			if o, r := orders.total(), reservations.total(); o != 25 || r != 25 {
				return fmt.Errorf("%d orders and %d reservations handled, want 25 and 25", o, r)
			}
			return nil
		})
		s.settled("payment")
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if o, r := orders.total(), reservations.total(); o != 25 || r != 25 {
		t.Errorf("%d orders and %d reservations handled in the end, want 25 and 25", o, r)
	}
}

func TestPartitions_begin_where_the_ledger_before_has_ended(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	s.publishN(10)
	failing := true
	r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if failing && e.ID() == "o-3" {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, time.Minute)
		}
		runs.add(e.ID())
		return consumer.Step{}, nil
	})
	patient := config()
	patient.Retry.MaxDelay, patient.Retry.DeferAfter = 2*time.Minute, 5*time.Minute
	kv := s.start(patient, r, nil)
	bustest.Eventually(t, soon, func() bool { return runs.total() == 9 })
	if err := kv.stop(); err != nil {
		t.Fatal(err)
	}
	failing = false
	s.publish(draft("not-delivered"))
	s.kind = partitionKind
	refused := s.prepare(config(), r, nil)
	if err := refused.Run(t.Context()); !errors.Is(err, consumer.ErrConfig) {
		t.Fatalf("with an event that has failed on the KV ledger: %v, want ErrConfig", err)
	}
	s.kind = nil
	durable, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	if durable.NumAckPending != 1 {
		t.Fatalf("%d events have not ended, want 1", durable.NumAckPending)
	}
	if err := s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
		t.Fatal(err)
	}
	kv = s.start(config(), r, nil)
	s.settled("payment")
	if err := kv.stop(); err != nil {
		t.Fatal(err)
	}
	s.publish(draft("late-1"), draft("late-2"))
	s.kind = partitionKind
	s.start(config(), r, nil)
	bustest.Eventually(t, soon, func() bool { return runs.of("late-2") == 1 })
	s.settled("payment")
	for id, n := range runs.all() {
		if n != 1 {
			t.Errorf("%s was handled %d times, want once", id, n)
		}
	}
	if n := runs.total(); n != 13 {
		t.Errorf("%d events handled, want 13", n)
	}
}

// What was handled before the consumer had partitions is told by sequences of a stream
// that is gone: in the one made anew nothing was.
func TestPartitions_stream_made_anew_after_another_ledger(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	s.publishN(10)
	kv := s.start(config(), counting(&runs), nil)
	s.settled("payment")
	if err := kv.stop(); err != nil {
		t.Fatal(err)
	}
	s.kind = partitionKind
	s.start(config(), counting(&runs), nil)
	s.publish(draft("old"))
	bustest.Eventually(t, soon, func() bool { return runs.of("old") == 1 })
	if err := s.bus.JetStream().DeleteStream(t.Context(), s.bus.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Provision(t.Context(), s.bus, topology.New(s.bus.Names(), topology.Config{})); err != nil {
		t.Fatal(err)
	}
	s.publish(draft("new-1"), draft("new-2"))
	bustest.Eventually(t, soon, func() error {
		if n := runs.of("new-1") + runs.of("new-2"); n != 2 {
			return fmt.Errorf("%d events of the new stream handled, want 2", n)
		}
		return nil
	})
}

// stoppedAsking is a ledger whose consumer is stopped when it asks for partitions.
type stoppedAsking struct {
	dedup.Ledger
	process *process
}

func (l stoppedAsking) Partitions() *dedup.Partitions {
	if l.process.cancel != nil {
		l.process.cancel()
	}
	return l.Ledger.Partitions()
}

func TestPartitions_consumer_stopped_before_it_has_any_is_clean(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	p := s.prepare(config(), counting(new(tally)), func(p *process, l dedup.Ledger) dedup.Ledger { return stoppedAsking{l, p} })
	p.run()
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// The last message before a silence gets lost on its way: nothing comes after it that
// would show the gap.
func TestPartitions_last_message_is_lost(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	lossy := *s
	lossy.server = wiretap.New(s.server, nil, wiretap.Nth(1, wiretap.Drop, func(frame []byte) bool {
		return wiretap.Subject(frame) == s.storedOn(placed.Type(), "o-0")
	}))
	var runs tally
	lossy.start(config(), counting(&runs), nil)
	events := s.publishN(1)
	bustest.Eventually(t, soon, func() bool { return runs.of(events[0].ID()) > 0 })
	s.settled("payment")
	runs.wantOnce(t, events)
}
