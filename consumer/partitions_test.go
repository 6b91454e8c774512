package consumer_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// transform sets or removes what puts partitions into subjects, as a person would.
func (s *system) transform(t *jetstream.SubjectTransformConfig) {
	s.tb.Helper()
	stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().EventsStream())
	if err != nil {
		s.tb.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.SubjectTransform = t
	if _, err := s.bus.JetStream().UpdateStream(s.tb.Context(), cfg); err != nil {
		s.tb.Fatal(err)
	}
}

// beforePartitions makes the system one of the time before partitions, in which
// payment has handled two events of three, and the ledger has forgotten them.
func (s *system) beforePartitions() (handled, pending []event.Event) {
	s.tb.Helper()
	ctx, n := s.tb.Context(), s.bus.Names()
	s.transform(nil)
	events := s.publish(draft("e-1"), draft("e-2"), draft("e-3"))
	old := n.Root("events." + string(placed.Type()) + ".*")
	ledger, err := dedup.NewKV(s.bus, dedup.Config{})
	if err == nil {
		err = ledger.Remember(ctx, "payment", []string{n.EventsStream() + " " + n.RedriveFilter("payment"), n.EventsStream() + " " + old})
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	c, err := s.bus.JetStream().CreateConsumer(ctx, n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, FilterSubjects: []string{n.RedriveFilter("payment"), old},
	})
	if err != nil {
		s.tb.Fatal(err)
	}
	for range 2 {
		m, err := c.Next()
		if err == nil {
			err = m.DoubleAck(ctx)
		}
		if err != nil {
			s.tb.Fatal(err)
		}
	}
	return events[:2], events[2:]
}

// A durable keeps its place when a version comes that takes events with a
// partition in their subject: nothing is delivered again, and nothing is missed.
func TestADurableOfBeforePartitionsKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	_, events := s.beforePartitions()
	runs := new(tally)
	s.start(config(), version(runs, false), nil)
	bustest.Eventually(t, soon, func() bool { return runs.of(events[0].ID()) == 1 })
	s.settled("payment")
	info, err := s.durable("payment")
	if err != nil {
		t.Fatal(err)
	}
	if want := s.bus.Names().TypeFilter(placed.Type()); !slices.Contains(info.Config.FilterSubjects, want) || len(info.Config.FilterSubjects) != 2 || info.Delivered.Consumer != 3 {
		t.Errorf("filters %v, %d delivered", info.Config.FilterSubjects, info.Delivered.Consumer)
	}

	if _, err := topology.Provision(t.Context(), s.bus, topology.New(s.bus.Names(), topology.Config{Partitions: 8})); err != nil {
		t.Fatal(err)
	}
	events = append(events, s.publish(draft("e-4"), draft("e-5"))...)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.settled("payment")
	if info, err = s.durable("payment"); err != nil || info.Delivered.Consumer != 5 {
		t.Errorf("%d delivered (%v), want 5", info.Delivered.Consumer, err)
	}
	runs.wantOnce(t, events)
	for _, m := range s.messages(s.bus.Names().EventsStream(), s.bus.Names().TypeFilter(placed.Type()))[3:] {
		if _, ok := s.bus.Names().StoredPartition(m.Subject); !ok {
			t.Errorf("stored without a partition: %s", m.Subject)
		}
	}
}

// The same durable, when a person has given the stream its partitions too early:
// the durable has passed over events. They are caught up on.
func TestWhatADurableOfBeforePartitionsHasPassedOverIsCaughtUp(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	handled, events := s.beforePartitions()
	source, destination := s.bus.Names().PartitionTransform(8)
	s.transform(&jetstream.SubjectTransformConfig{Source: source, Destination: destination})
	events = append(events, s.publish(draft("e-4"))...)
	s.transform(nil)
	events = append(events, s.publish(draft("e-5"))...)
	runs := new(tally)
	s.start(config(), version(runs, false), nil)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) >= len(events) })
	s.caughtUp()
	s.settled("payment")
	// The catch-up goes over what the ledger may remember; these two it does not.
	runs.wantOnce(t, append(events, handled...))
}

// The old version died when it had made the catch-up of a type, and nothing else.
func TestACatchUpOfBeforePartitionsGoesOn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	_, events := s.beforePartitions()
	n := s.bus.Names()
	events = append(events, s.publish(reservation("r-1"))...)
	if _, err := s.bus.JetStream().CreateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment_catchup", AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: []string{n.Root("events." + string(reserved.Type()) + ".*")},
	}); err != nil {
		t.Fatal(err)
	}
	runs := new(tally)
	s.start(brief(), version(runs, true), nil)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.caughtUp()
	bustest.Eventually(t, soon, func() error {
		_, err := topology.Provision(t.Context(), s.bus, topology.New(n, topology.Config{Partitions: 8}))
		return err
	})
	events = append(events, s.publish(draft("o-1"), reservation("r-2"))...)
	bustest.Eventually(t, soon, func() bool { return len(runs.all()) == len(events) })
	s.settled("payment")
	runs.wantOnce(t, events)
}

// Whoever publishes on five tokens, in whatever form, is stored with a partition and handled.
func TestForeignPublishersNeedNotKnowOfPartitions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	s.start(config(), version(runs, false), nil)
	const structured = `{"specversion":"1.0","id":"%s","source":"/legacy","type":"order.placed.v1","partitionkey":"o/1","data":{"amount":1}}`
	for id, m := range map[string]*nats.Msg{
		"plain":      {Data: fmt.Appendf(nil, structured, "plain")}, // nats pub
		"structured": {Data: fmt.Appendf(nil, structured, "structured"), Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}},
		"watermill": {Data: []byte(`{"amount":1}`), Header: nats.Header{
			"_watermill_message_uuid": {"fe3c0a63-3a4a-4b19-8d1e-0f3a7c6f3f4b"}, "ce-specversion": {"1.0"}, "ce-id": {"watermill"},
			"ce-source": {"/watermill"}, "ce-type": {"order.placed.v1"}, "ce-partitionkey": {"o/1"},
		}},
	} {
		m.Subject = s.bus.Names().EventSubject(placed.Type(), "o/1")
		if _, err := s.bus.JetStream().PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		bustest.Eventually(t, soon, func() bool { return runs.of(id) == 1 })
	}
	if stored := s.messages(s.bus.Names().EventsStream(), s.storedOn(placed.Type(), "o/1")); len(stored) != 3 {
		t.Errorf("%d are stored in their partition, want 3", len(stored))
	}
}

func TestASubjectOfBeforePartitionsIsDropped(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.beforePartitions()
	drop := consumer.Drop{Consumer: "payment", Types: []event.Type{placed.Type()}}
	plan, err := drop.Plan(t.Context(), s.bus)
	if err != nil || len(plan) != 1 || plan[0].Pending != 1 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	if err := drop.Apply(t.Context(), s.bus); err != nil {
		t.Fatal(err)
	}
	info, err := s.durable("payment")
	if err != nil || !slices.Equal(info.Config.FilterSubjects, []string{s.bus.Names().RedriveFilter("payment")}) {
		t.Errorf("filters %v, %v", info.Config.FilterSubjects, err)
	}
}
