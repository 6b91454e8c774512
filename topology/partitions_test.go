package topology_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// subjects are those on which a stream has something.
func subjects(t *testing.T, b *bus.Bus, stream, filter string) map[string]uint64 {
	t.Helper()
	s, err := b.JetStream().Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(b.Names().Root(filter)))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects
}

func TestPartitionOfIsWhereTheServerStoresAnEvent(t *testing.T) {
	t.Parallel()
	keys := []event.Key{"a b", "ord/7", "é", "\u65e5\u672c", "*", ">", "a.b", "=41", "0", "17", event.Key(strings.Repeat("k", 128)), event.Key(strings.Repeat("k", 129)), event.Key(strings.Repeat("é", 64))}
	for i := range 500 {
		keys = append(keys, event.Key(fmt.Sprintf("ord-%x", i*7919)))
	}
	for _, partitions := range []int{1, 7, 32, event.MaxPartitions} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			t.Parallel()
			b := bustest.Provision(t, fresh(t), topology.Config{Partitions: partitions})
			if got := bus.Partitions(config(t, b, b.Names().EventsStream())); got != partitions {
				t.Errorf("the stream has %d partitions", got)
			}
			for _, key := range keys {
				if err := publishTo(t, b, nats.NewMsg(b.Names().EventSubject("order.placed.v1", key))); err != nil {
					t.Fatal(err)
				}
			}
			stored := subjects(t, b, b.Names().EventsStream(), "events.>")
			for _, key := range keys {
				p := event.PartitionOf(key, partitions)
				want := b.Names().Root(fmt.Sprintf("events.order.placed.v1.%d.%s", p, event.EscapeKey(key)))
				if stored[want] != 1 {
					t.Errorf("key %q is not on %s", key, want)
				}
				if got := b.Names().Stored(b.Names().EventSubject("order.placed.v1", key), partitions); got != want {
					t.Errorf("Stored is %s, want %s", got, want)
				}
			}
			if len(stored) != len(keys) {
				t.Errorf("%d subjects for %d keys", len(stored), len(keys))
			}
		})
	}
}

// What is due is sourced into the event stream, and gets its partition there.
func TestWhatIsDueHasItsPartition(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	n := b.Names()
	for i, subject := range []string{
		n.EventSubject("order.deadline.v1", "ord-1"),
		n.RedriveSubject("payment", n.Stored(n.EventSubject("order.placed.v1", "ord-1"), event.DefaultPartitions)),
	} {
		m := nats.NewMsg(n.TimerSubject("payment", "deadline", event.Key(fmt.Sprint(i))))
		m.Header.Set(jetstream.ScheduleHeader, event.ScheduleAt(time.Now()))
		m.Header.Set(jetstream.ScheduleTargetHeader, n.DueSubject(subject))
		if err := publishTo(t, b, m); err != nil {
			t.Fatal(err)
		}
	}
	p := event.PartitionOf("ord-1", event.DefaultPartitions)
	for _, filter := range []string{n.TypePartitionFilter("order.deadline.v1", p), n.RedrivePartitionFilter("payment", p)} {
		bustest.Eventually(t, 10*time.Second, func() bool {
			return len(subjects(t, b, n.EventsStream(), strings.TrimPrefix(filter, n.Root("")))) == 1
		})
	}
}

// without makes a system of the time before partitions, with one event.
func without(t *testing.T) *bus.Bus {
	t.Helper()
	b := bustest.NewBus(t)
	cfg := config(t, b, b.Names().EventsStream())
	cfg.SubjectTransform = nil
	if _, err := b.JetStream().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := publishTo(t, b, nats.NewMsg(b.Names().EventSubject("order.placed.v1", "ord-1"))); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPartitionsAreAddedWhenAllDurablesTakeThem(t *testing.T) {
	t.Parallel()
	b := without(t)
	n := b.Names()
	untold := plan(t, b, topology.New(n, topology.Config{}))
	if c := change(t, untold, n.EventsStream(), "partitions"); !c.Kept || c.Have != "none" || c.Want != "32" || untold.Changed() {
		t.Errorf("a stream without partitions does not stay as it is: %s", untold)
	}
	wanted := topology.New(n, topology.Config{Partitions: 8})
	for _, filter := range []string{n.Root("events.order.placed.v1.*"), n.Root("events.*.*.*.ord-1")} {
		durable, err := b.JetStream().CreateOrUpdateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
			Durable: "payment", FilterSubjects: []string{n.RedriveFilter("payment"), filter},
		})
		if err != nil {
			t.Fatal(err)
		}
		mention(t, refused(t, b, wanted), "partitions: have none, want 8 (refused)", durable.CachedInfo().Name, filter)
	}
	_, err := b.JetStream().UpdateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", FilterSubjects: []string{n.RedriveFilter("payment"), n.TypeFilter("order.placed.v1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := plan(t, b, wanted)
	if c := change(t, p, n.EventsStream(), "partitions"); !c.Safe || c.Kept || c.Have != "none" || c.Want != "8" {
		t.Errorf("%s", c)
	}
	bustest.Provision(t, b, topology.Config{Partitions: 8})
	for _, anew := range []topology.Topology{wanted, topology.New(n, topology.Config{})} {
		if p := plan(t, b, anew); p.Changed() || p.Err() != nil {
			t.Errorf("plan afterwards:\n%s", p)
		}
	}
	if err := publishTo(t, b, nats.NewMsg(n.EventSubject("order.placed.v1", "ord-1"))); err != nil {
		t.Fatal(err)
	}
	if got := subjects(t, b, n.EventsStream(), "events.>"); len(got) != 2 {
		t.Errorf("stored on %v", got)
	}
}

func TestThePartitionsOfAFoldingStreamStay(t *testing.T) {
	t.Parallel()
	b := without(t)
	n := b.Names()
	source, destination := n.PartitionTransform(8)
	cut := strings.LastIndexByte(destination, '.')
	for _, tt := range []struct {
		destination string
		ok          bool
	}{
		{destination[:cut], false}, // the folding of the time before partitions
		{destination[:cut] + ".{{partition(64,4)}}", true},
	} {
		cfg := config(t, b, n.EventsStream())
		cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: source, Destination: tt.destination}
		if _, err := b.JetStream().UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if p := plan(t, b, topology.New(n, topology.Config{})); p.Changed() || p.Err() != nil {
			t.Errorf("%s does not stay:\n%s", tt.destination, p)
		}
		wanted := topology.New(n, topology.Config{Partitions: 8})
		if !tt.ok {
			mention(t, refused(t, b, wanted), "transform of its own", destination)
		} else if p := plan(t, b, wanted); p.Changed() || p.Err() != nil {
			t.Errorf("plan:\n%s", p)
		}
	}
}

func TestTheNumberOfPartitionsChangesOnlyWhenNothingIsUnderWay(t *testing.T) {
	t.Parallel()
	b := bustest.Provision(t, fresh(t), topology.Config{Partitions: 8})
	n := b.Names()
	wanted := topology.New(n, topology.Config{Partitions: 16})
	send := func(subject string, header ...string) {
		t.Helper()
		m := nats.NewMsg(subject)
		for i := 0; i < len(header); i += 2 {
			m.Header.Set(header[i], header[i+1])
		}
		if err := publishTo(t, b, m); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(wants ...string) {
		t.Helper()
		mention(t, refused(t, b, wanted), append(wants, "partitions: have 8, want 16 (refused)", "stop what publishes")...)
	}

	early := plan(t, b, wanted)
	send(n.EventSubject("order.placed.v1", "ord-1")) // 1
	durable, err := b.JetStream().CreateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: n.TypeFilter("order.placed.v1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	refuse("durable payment has 1 events pending and 0 unacknowledged")
	if err := topology.Apply(t.Context(), b, early); err == nil || !strings.Contains(err.Error(), "durable payment has 1") {
		t.Errorf("a plan of before was carried out: %v", err)
	}
	m, err := durable.Next()
	if err != nil {
		t.Fatal(err)
	}
	refuse("durable payment has 0 events pending and 1 unacknowledged")
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}

	send(n.TimerSubject("payment", "retry", "k"), jetstream.ScheduleHeader, event.ScheduleAt(time.Now().Add(time.Hour)),
		jetstream.ScheduleTargetHeader, n.DueSubject(n.RedriveSubject("payment", n.EventSubject("order.placed.v1", "k"))))
	refuse("1 retries wait", n.TimerSubject("payment", "retry", "k"))
	timers, err := b.JetStream().Stream(t.Context(), n.TimersStream())
	if err == nil {
		err = timers.Purge(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}

	page := n.Root("ledger.stock.5.page")
	send(page, "Farandole-Page", "page", "Farandole-Floor", "1", "Farandole-Owner", "abc")
	refuse("abc owns partition 5 of consumer stock")
	send(page, "Farandole-Page", "farewell", "Farandole-Floor", "0", "Farandole-Owner", "abc")
	send(n.Root("events.stock.moved.v1.5.by-hand"))
	refuse("consumer stock has not handled event")
	known := nats.NewMsg(n.LedgerSubject("stock", "durable"))
	known.Data = fmt.Appendf(nil, `{"subjects":["%s %s"]}`, n.EventsStream(), n.TypeFilter("stock.moved.v1"))
	if err := publishTo(t, b, known); err != nil {
		t.Fatal(err)
	}
	refuse("consumer stock has not handled event")
	last := messages(t, b)
	send(page, "Farandole-Page", "farewell", "Farandole-Floor", fmt.Sprint(last), "Farandole-Owner", "abc")
	send(n.Root("events.order.confirmed.v1.5.not-its"))
	send(n.Root("redrive.stock.stock.moved.v1.5.k"))
	refuse("consumer stock has not handled event", "redrive.stock")
	send(page, "Farandole-Page", "farewell", "Farandole-Floor", fmt.Sprint(last+10), "Farandole-Owner", "abc")

	bustest.Provision(t, b, topology.Config{Partitions: 16})
	send(n.EventSubject("order.placed.v1", "ord-9"))
	if got := subjects(t, b, n.EventsStream(), fmt.Sprintf("events.order.placed.v1.%d.ord-9", event.PartitionOf("ord-9", 16))); len(got) != 1 {
		t.Errorf("stored on %v", subjects(t, b, n.EventsStream(), "events.>"))
	}
}

func TestANumberOfPartitionsThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	for _, partitions := range []int{-1, event.MaxPartitions + 1} {
		mention(t, refused(t, b, topology.New(b.Names(), topology.Config{Partitions: partitions})), "partitions", "1 to 9999")
	}
}

// Watchers of the members learn of one that says nothing any more.
func TestAMemberThatIsSilentIsGone(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	kv, err := b.JetStream().KeyValue(t.Context(), b.Names().Bucket(event.MembersBucket))
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := kv.Watch(t.Context(), "stock.*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := watcher.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := kv.Put(t.Context(), "stock.abc", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		select {
		case entry := <-watcher.Updates():
			if entry != nil && entry.Operation() == jetstream.KeyValuePurge {
				return
			}
		case <-ctx.Done():
			t.Fatal("the watcher was not told")
		}
	}
}
