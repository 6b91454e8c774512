package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/consumer/internal/members"
	"github.com/farandole/farandole/event"
)

// observed is a system whose consumers' traces are written by hand.
type observed struct {
	*testing.T
	bus *bus.Bus
}

func (o *observed) store(subject string, header nats.Header, data string) {
	o.Helper()
	pending, err := o.bus.Send(o.Context(), &nats.Msg{Subject: o.bus.Names().Root(subject), Header: header, Data: []byte(data)})
	if err == nil {
		_, err = pending.Wait(o.Context())
	}
	o.ok(err)
}

func (o *observed) ok(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// publish stores an event of order.placed.v1 and returns its sequence.
func (o *observed) publish(key event.Key) uint64 {
	o.Helper()
	return o.event("order.placed.v1", key)
}

func (o *observed) event(t event.Type, key event.Key) uint64 {
	o.Helper()
	e, err := o.bus.Seal(event.Draft{Type: t, Key: key})
	o.ok(err)
	r, err := o.bus.Publish(o.Context(), e)
	o.ok(err)
	return r.Sequence
}

// page writes the last page of a partition.
func (o *observed) page(partition int, owner, kind string, floor uint64) {
	o.Helper()
	o.store(fmt.Sprintf("ledger.inventory.%d.page", partition), nats.Header{
		"Farandole-Owner": {owner}, "Farandole-Page": {kind}, "Farandole-Floor": {fmt.Sprint(floor)}, "Farandole-Serial": {"1"},
		"Farandole-Types": {"order.placed.v1 order.archived.v1@0"},
	}, "")
}

// durable makes one and takes n messages from it.
func (o *observed) durable(name string, n int, filters ...string) {
	o.Helper()
	c, err := o.bus.JetStream().CreateConsumer(o.Context(), o.bus.Names().EventsStream(), jetstream.ConsumerConfig{
		Durable: name, AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: filters,
	})
	o.ok(err)
	if n == 0 {
		return
	}
	batch, err := c.Fetch(n)
	o.ok(err)
	got := 0
	for range batch.Messages() {
		got++
	}
	if got != n || batch.Error() != nil {
		o.Fatalf("durable %s has given %d messages of %d: %v", name, got, n, batch.Error())
	}
}

// run starts a member of inventory.
func (o *observed) run(id string) {
	o.Helper()
	g := members.New(members.Config{Bus: o.bus, Consumer: "inventory", ID: id, Partitions: event.DefaultPartitions})
	ctx, cancel := context.WithCancel(context.WithoutCancel(o.Context()))
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	o.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			o.Error(err)
		}
	})
	bustest.Eventually(o, soon, func() bool { return g.View().Known })
}

func TestStatusOfPartitions(t *testing.T) {
	t.Parallel()
	o := &observed{t, bustest.NewBus(t)}
	names := o.bus.Names()
	const key = "ord-1"
	p := event.PartitionOf(key, event.DefaultPartitions)
	first := o.publish(key)
	o.publish(key)
	o.publish(key)
	o.event("order.archived.v1", key) // whoever handled these is gone
	other := event.Key("ord-2")
	for i := 3; event.PartitionOf(other, event.DefaultPartitions) == p; i++ {
		other = event.Key(fmt.Sprint("ord-", i))
	}
	q := event.PartitionOf(other, event.DefaultPartitions)
	o.publish(other)
	o.store(fmt.Sprintf("ledger.inventory.%d.%s", p, event.NewEventKey("/s", "1")), nil, `{"state":"waiting","failures":1}`)
	o.store(fmt.Sprintf("ledger.inventory.%d.%s", p, event.NewEventKey("/s", "2")), nil, `{"state":"parked","failures":5}`)
	o.store("timer.inventory.retry."+string(event.NewEventKey("/s", "1")), nil, "{}")
	o.page(p, "m0", "page", 0)
	o.page(p, "m1", "page", first)
	o.page(q, "m0", "fence", 0) // it has died
	var free []int              // of others
	for n := range event.DefaultPartitions {
		if n != p && n != q {
			free = append(free, n)
		}
	}
	o.page(free[0], "m1", "farewell", first)
	o.durable("inventory-m1-1", 2, names.RedriveFilter("inventory"), names.TypePartitionFilter("order.placed.v1", p))
	o.durable("inventory-m0-1", 1, names.RedrivePartitionFilter("inventory", q), names.TypePartitionFilter("order.placed.v1", q))
	o.run("m1")

	s, err := consumer.Look(t.Context(), o.bus, "inventory")
	o.ok(err)
	if s.Lag != 3 || s.InFlight != 2 || s.Retries != 1 || s.Deferred != 1 || len(s.Durables) != 2 || len(s.Members) != 1 || s.Members[0].ID != "m1" {
		t.Errorf("status is %+v, want 3 events, 2 of them in flight and one retry, which is a timer", s)
	}
	if len(s.Partitions) != event.DefaultPartitions {
		t.Fatalf("%d partitions", len(s.Partitions))
	}
	for _, tt := range []struct {
		partition int
		want      consumer.PartitionStatus
	}{
		{p, consumer.PartitionStatus{Owner: "m1", Owned: true, Floor: first, Lag: 2, Retries: 1, Page: "page"}},
		{q, consumer.PartitionStatus{Owner: "m0", Lag: 1, Page: "fence"}},
		{free[0], consumer.PartitionStatus{Owner: "m1", Floor: first, Page: "farewell"}},
		{free[1], consumer.PartitionStatus{}},
	} {
		got := s.Partitions[tt.partition]
		if got.At.IsZero() != (got.Page == "") || got.Oldest.IsZero() != (got.Lag == 0) {
			t.Errorf("partition %d: last page %q at %v", tt.partition, got.Page, got.At)
		}
		got.At, got.Oldest, tt.want.Partition = tt.want.At, tt.want.Oldest, tt.partition
		if got != tt.want {
			t.Errorf("partition %d is %+v, want %+v", tt.partition, got, tt.want)
		}
	}
}

func TestStatusOfDurables(t *testing.T) {
	t.Parallel()
	o := &observed{t, bustest.NewBus(t)}
	names := o.bus.Names()
	if all, err := consumer.List(t.Context(), o.bus); err != nil || len(all) != 0 {
		t.Errorf("without consumers: %v, %v", all, err)
	}
	for i := range 5 {
		o.publish(event.Key(fmt.Sprint("ord-", i)))
	}
	o.durable("payment", 2, names.RedriveFilter("payment"), names.TypeFilter("order.placed.v1"))
	o.durable("payment_catchup", 0, names.TypeFilter("order.cancelled.v1"))
	o.durable("shipping", 0, names.RedriveFilter("shipping"))
	o.durable("reporter", 0, names.EventsFilter()) // somebody else's
	s, err := consumer.Look(t.Context(), o.bus, "payment")
	o.ok(err)
	if s.Lag != 5 || s.InFlight != 2 || s.Retries != 0 || s.Partitions != nil || len(s.Durables) != 2 {
		t.Errorf("status is %+v, want 5 events, 2 of them in flight, and two durables", s)
	}
	if d := s.Durables[0]; d.Name != "payment" || d.Pending != 3 || d.AckPending != 2 || len(d.Subjects) != 2 {
		t.Errorf("durable is %+v", d)
	}
	all, err := consumer.List(t.Context(), o.bus)
	if err != nil || len(all) != 2 || all[0].Consumer != "payment" || all[0].Lag != 5 || all[1].Consumer != "shipping" {
		t.Errorf("listed are %+v, %v", all, err)
	}
	if _, err := consumer.Look(t.Context(), o.bus, "nobody"); !errors.Is(err, consumer.ErrNoDurable) {
		t.Errorf("a consumer that does not exist: %v", err)
	}
	if _, err := consumer.Look(t.Context(), o.bus, "No Name"); !errors.Is(err, event.ErrInvalidConsumer) {
		t.Errorf("a name that is none: %v", err)
	}
}

func TestStatusOfProcessesAtWork(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	hold := make(chan struct{})
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(ctx context.Context, e event.Event, _ orderData) (consumer.Step, error) {
		if event.PartitionKey(e) == "ord-0" {
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return pay(e), nil
	})
	look := func(check func(consumer.Status) bool) {
		t.Helper()
		bustest.Eventually(t, soon, func() error {
			status, err := consumer.Look(t.Context(), s.bus, config().Name)
			if err == nil && !check(status) {
				err = fmt.Errorf("status is %+v", status)
			}
			return err
		})
	}
	owned := func(status consumer.Status) bool {
		return len(status.Members) == 2 && !slices.ContainsFunc(status.Partitions, func(p consumer.PartitionStatus) bool { return !p.Owned })
	}
	cfg := config()
	cfg.HandlerTimeout, cfg.Lease = soon, soon // the one that is held is not given to another process meanwhile
	s.start(cfg, r, nil)
	s.start(cfg, r, nil)
	look(owned)
	for k := range 20 {
		s.publish(placed.New(event.Key(fmt.Sprintf("ord-%d", k)), orderData{}))
	}
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 19 })
	look(func(status consumer.Status) bool { return owned(status) && status.Lag > 0 && status.InFlight > 0 })
	close(hold)
	look(func(status consumer.Status) bool { return owned(status) && status.Lag == 0 && status.InFlight == 0 })
}
