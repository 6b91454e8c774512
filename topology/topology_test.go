package topology_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// fresh is a bus with its own prefix and nothing provisioned.
func fresh(t *testing.T) *bus.Bus {
	t.Helper()
	return bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()}})
}

func config(t *testing.T, b *bus.Bus, stream string) jetstream.StreamConfig {
	t.Helper()
	s, err := b.JetStream().Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().Config
}

func plan(t *testing.T, b *bus.Bus, wanted topology.Topology) topology.Plan {
	t.Helper()
	p, err := topology.NewPlan(t.Context(), b, wanted)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// change returns what the plan says about one setting of a stream.
func change(t *testing.T, p topology.Plan, stream, setting string) topology.Change {
	t.Helper()
	for _, s := range p.Steps {
		for _, c := range s.Changes {
			if s.Stream == stream && c.Setting == setting {
				return c
			}
		}
	}
	t.Fatalf("no change of %s %s in\n%s", stream, setting, p)
	return topology.Change{}
}

// refused provisions and returns the refusal, after checking that nothing was created.
func refused(t *testing.T, b *bus.Bus, wanted topology.Topology) string {
	t.Helper()
	var before []string
	for name := range b.JetStream().StreamNames(t.Context()).Name() {
		if strings.Contains(name, b.Names().Prefix) {
			before = append(before, name)
		}
	}
	p, err := topology.Provision(t.Context(), b, wanted)
	var refusal *topology.Error
	if !errors.Is(err, topology.ErrTopology) || !errors.As(err, &refusal) || len(p.Refused()) == 0 {
		t.Fatalf("provision gave %v, plan\n%s", err, p)
	}
	for name := range b.JetStream().StreamNames(t.Context()).Name() {
		if strings.Contains(name, b.Names().Prefix) && !slices.Contains(before, name) {
			t.Errorf("stream %s was created", name)
		}
	}
	return err.Error()
}

func TestProvisionCreatesKeepsAndIsRepeatable(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	wanted := topology.New(b.Names(), topology.Config{Buckets: []string{"extra"}})
	first := plan(t, b, wanted)
	if !first.Changed() || len(first.Steps) != 8 || first.Steps[0].Action != topology.ActionCreate {
		t.Errorf("first plan:\n%s", first)
	}
	bustest.Provision(t, b, topology.Config{Buckets: []string{"extra"}})
	if again := plan(t, b, wanted); again.Changed() || again.Err() != nil {
		t.Errorf("plan after provisioning:\n%s", again)
	}
	events := config(t, b, b.Names().EventsStream())
	if !events.AllowAtomicPublish || !events.AllowMsgTTL || events.AllowMsgSchedules || events.AllowRollup ||
		!events.AllowDirect || events.Storage != jetstream.FileStorage || events.Duplicates != 2*time.Minute {
		t.Errorf("events stream is %+v", events)
	}
}

func TestProvisionedBucketsAreKeyValueBuckets(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	kv, err := b.JetStream().KeyValue(t.Context(), b.Names().Bucket("dedup"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Create(t.Context(), "short", []byte("1"), jetstream.KeyTTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	revision, err := kv.Put(t.Context(), "long", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(t.Context(), "long", []byte("2"), revision+1); !errors.Is(err, jetstream.ErrKeyExists) {
		t.Errorf("update with a wrong revision: %v", err)
	}
	bustest.Eventually(t, time.Minute, func() bool {
		_, err := kv.Get(t.Context(), "short")
		return errors.Is(err, jetstream.ErrKeyNotFound)
	})
	if _, err := kv.Create(t.Context(), "short", []byte("2")); err != nil {
		t.Errorf("create after the end of the key's time: %v", err)
	}
	// The bucket is what the client would have made.
	if _, err := b.JetStream().CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: b.Names().Bucket("dedup"), Description: "Farandole bucket " + b.Names().Bucket("dedup"),
		LimitMarkerTTL: time.Hour, Storage: jetstream.FileStorage,
	}); err != nil {
		t.Errorf("the client wants another bucket: %v", err)
	}
}

func TestDeadLetterStreamReplacesByTokenAndRefusesWhenFull(t *testing.T) {
	t.Parallel()
	b := bustest.Provision(t, fresh(t), topology.Config{DLQMaxMsgs: 2})
	subject := func(id string) *nats.Msg { return nats.NewMsg(b.Names().Root("dlq.c.permanent." + id)) }
	for _, id := range []string{"a", "b", "a"} { // the second "a" takes the first one's place
		if err := publishTo(t, b, subject(id)); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	if err := publishTo(t, b, subject("c")); !errors.Is(err, bus.ErrStreamFull) {
		t.Errorf("into a full stream: %v", err)
	}
	s, err := b.JetStream().Stream(t.Context(), b.Names().DLQStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d records, want 2", n)
	}
}

func TestDead_letter_stream_that_would_lose_records_is_mended(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	addStream(t, b, jetstream.StreamConfig{
		Name: b.Names().DLQStream(), Subjects: []string{b.Names().Root("dlq.>")},
		Discard: jetstream.DiscardOld, MaxAge: 5 * time.Second, MaxMsgs: 5, Duplicates: time.Second,
		MaxMsgsPerSubject: 1, DiscardNewPerSubject: false,
	})
	p := plan(t, b, topology.New(b.Names(), topology.Config{}))
	for _, setting := range []string{"discard", "max_age", "max_msgs"} {
		if c := change(t, p, b.Names().DLQStream(), setting); !c.Safe || c.Kept {
			t.Errorf("%s", c)
		}
	}
	bustest.Provision(t, b, topology.Config{})
	if cfg := config(t, b, b.Names().DLQStream()); cfg.Discard != jetstream.DiscardNew || cfg.MaxAge != 0 || cfg.MaxMsgs > 0 {
		t.Errorf("dead letters can still vanish: %+v", cfg)
	}
}

func TestDead_letters_inside_the_events_are_refused(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	wanted := topology.New(b.Names(), topology.Config{})
	wanted.Streams[2].Subjects = []string{b.Names().Root("events.dlq.>")}
	mention(t, refused(t, b, wanted), b.Names().Root("events.dlq.>"), b.Names().Root("events.>"),
		b.Names().EventsStream(), b.Names().DLQStream())
}

func TestAn_existing_stream_is_brought_to_what_is_wanted_or_refused_and_loses_nothing(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	name := b.Names().EventsStream()
	root := b.Names().Root
	fill := func(t *testing.T, cfg jetstream.StreamConfig) {
		t.Helper()
		cfg.Name = name
		addStream(t, b, cfg)
		for range 10 {
			if err := publishTo(t, b, nats.NewMsg(root("events.order.placed.v1.k"))); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Everything that differs here can be changed, and an operator's extras stay.
	fill(t, jetstream.StreamConfig{
		Subjects: []string{root("events.order.>"), root("extra.>")}, MaxAge: time.Hour, MaxMsgs: 1000,
		Duplicates: time.Minute, Description: "mine",
	})
	p := plan(t, b, topology.New(b.Names(), topology.Config{EventsMaxAge: 2 * time.Hour}))
	for setting, want := range map[string][2]string{
		"max_age": {"1h0m0s", "2h0m0s"}, "max_msgs": {"1000", "unlimited"}, "duplicate_window": {"1m0s", "2m0s"},
		"allow_atomic": {"false", "true"}, "sources": {"none", b.Names().TimersStream()},
	} {
		if c := change(t, p, name, setting); c.Have != want[0] || c.Want != want[1] || !c.Safe || c.Kept {
			t.Errorf("%s", c)
		}
	}
	bustest.Provision(t, b, topology.Config{EventsMaxAge: 2 * time.Hour})
	cfg := config(t, b, name)
	if cfg.MaxAge != 2*time.Hour || cfg.Description != "mine" ||
		!slices.Contains(cfg.Subjects, root("extra.>")) || !slices.Contains(cfg.Subjects, root("events.>")) ||
		slices.Contains(cfg.Subjects, root("events.order.>")) {
		t.Errorf("updated to %+v", cfg)
	}
	if n := messages(t, b); n != 10 {
		t.Fatalf("%d messages left, want 10", n)
	}

	// More than is wanted is kept.
	kept := plan(t, b, topology.New(b.Names(), topology.Config{EventsMaxAge: time.Hour, EventsMaxBytes: 1 << 20}))
	if c := change(t, kept, name, "max_age"); !c.Kept || kept.Changed() {
		t.Errorf("plan with less than exists:\n%s", kept)
	}

	// What would lose messages is refused, all of it in one error.
	if err := b.JetStream().DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	fill(t, jetstream.StreamConfig{
		Subjects: []string{root("events.>")}, Storage: jetstream.MemoryStorage, Retention: jetstream.InterestPolicy,
		MaxAge: time.Hour, DenyDelete: true, DenyPurge: true, Discard: jetstream.DiscardNew,
	})
	if _, err := b.JetStream().CreateConsumer(t.Context(), name, jetstream.ConsumerConfig{Durable: "c"}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := publishTo(t, b, nats.NewMsg(root("events.order.placed.v1.k"))); err != nil {
			t.Fatal(err)
		}
	}
	before := config(t, b, name)
	mention(t, refused(t, b, topology.New(b.Names(), topology.Config{Replicas: 3})), name,
		"storage: have memory, want file", "retention: have interest, want limits", "deny_delete", "deny_purge",
		"replicas need a cluster")
	if after := config(t, b, name); after.MaxAge != before.MaxAge || len(after.Subjects) != len(before.Subjects) {
		t.Errorf("a refused plan changed the stream: %+v", after)
	}
	if n := messages(t, b); n != 10 {
		t.Errorf("%d messages left, want 10", n)
	}
}

func TestStreamsOfAnotherKindAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  jetstream.StreamConfig
		want string
	}{
		"mirror":  {jetstream.StreamConfig{Mirror: &jetstream.StreamSource{Name: "origin"}}, "mirror of origin"},
		"counter": {jetstream.StreamConfig{Subjects: []string{"events.>"}, AllowMsgCounter: true, AllowDirect: true}, "allow_msg_counter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fresh(t)
			origin := addStream(t, b, jetstream.StreamConfig{Name: b.Names().Bucket("origin"), Subjects: []string{b.Names().Root("origin")}})
			tc.cfg.Name = b.Names().EventsStream()
			for i, s := range tc.cfg.Subjects {
				tc.cfg.Subjects[i] = b.Names().Root(s)
			}
			if tc.cfg.Mirror != nil {
				tc.cfg.Mirror.Name = origin.CachedInfo().Config.Name
				tc.want = "mirror of " + tc.cfg.Mirror.Name
			}
			for _, s := range tc.cfg.Sources {
				s.Name = origin.CachedInfo().Config.Name
			}
			addStream(t, b, tc.cfg)
			mention(t, refused(t, b, topology.New(b.Names(), topology.Config{})), tc.want)
		})
	}
	t.Run("sealed", func(t *testing.T) {
		t.Parallel()
		b := fresh(t)
		s := addStream(t, b, jetstream.StreamConfig{Name: b.Names().EventsStream(), Subjects: []string{b.Names().Root("events.>")}})
		cfg := s.CachedInfo().Config
		cfg.Sealed = true
		if _, err := b.JetStream().UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		mention(t, refused(t, b, topology.New(b.Names(), topology.Config{})), "cannot unseal")
	})
}

func TestSubjects_of_another_stream_are_refused_and_nothing_is_created(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	orders := b.Names().Bucket("orders")
	addStream(t, b, jetstream.StreamConfig{Name: orders, Subjects: []string{b.Names().Root("events.orders.>")}})
	mention(t, refused(t, b, topology.New(b.Names(), topology.Config{})), orders, b.Names().Root("events.orders.>"),
		b.Names().EventsStream(), b.Names().Root("events.>"))

	wide := fresh(t) // the other way round: theirs is the wider one
	addStream(t, wide, jetstream.StreamConfig{Name: wide.Names().Bucket("all"), Subjects: []string{wide.Names().Root(">")}})
	mention(t, refused(t, wide, topology.New(wide.Names(), topology.Config{})), wide.Names().Bucket("all"), wide.Names().Root("dlq.>"))
}

func TestA_duplicate_window_longer_than_the_age_is_refused(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	wanted := topology.New(b.Names(), topology.Config{EventsMaxAge: time.Minute, Duplicates: 5 * time.Minute, Replicas: 3})
	mention(t, refused(t, b, wanted), "duplicate_window", "5m0s", "max_age 1m0s", "replicas need a cluster")
}

func TestReplicasAreRaisedInAClusterAndNotLowered(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	b := bustest.Connect(t, bus.Config{URL: servers[0].URL() + "," + servers[1].URL()})
	events := b.Names().EventsStream()
	for _, replicas := range []int{1, 3} {
		if _, err := topology.Provision(t.Context(), b, topology.New(b.Names(), topology.Config{Replicas: replicas})); err != nil {
			t.Fatal(err)
		}
	}
	if cfg := config(t, b, events); cfg.Replicas != 3 {
		t.Errorf("%d replicas, want 3", cfg.Replicas)
	}
	if p := plan(t, b, topology.New(b.Names(), topology.Config{})); p.Changed() || !change(t, p, events, "replicas").Kept {
		t.Errorf("plan with fewer replicas:\n%s", p)
	}

	m := nats.NewMsg(b.Names().Root("events.order.placed.v1.k"))
	bustest.Eventually(t, time.Minute, func() error { // the group may be electing
		return publishTo(t, b, m)
	})
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "999") // replicas have an error code of their own
	if err := publishTo(t, b, m); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("conflicting write: %v", err)
	}
}

func TestServicesMayProvisionAtOnce(t *testing.T) {
	t.Parallel()
	first := fresh(t)
	var all sync.WaitGroup
	for range 8 {
		b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: first.Names()})
		all.Go(func() {
			if _, err := topology.Provision(t.Context(), b, topology.New(b.Names(), topology.Config{})); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	bustest.Provision(t, first, topology.Config{})
}

func TestApplyOfAStalePlanReportsIt(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	p := plan(t, b, topology.New(b.Names(), topology.Config{}))
	addStream(t, b, jetstream.StreamConfig{Name: b.Names().EventsStream(), Subjects: []string{b.Names().Root("events.>")}})
	if err := topology.Apply(t.Context(), b, p); err == nil {
		t.Error("a stream was created that exists")
	}
	bustest.Provision(t, b, topology.Config{}) // plans again
}

func TestPlanIsReadableAndHasJSON(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	addStream(t, b, jetstream.StreamConfig{
		Name: b.Names().EventsStream(), Subjects: []string{b.Names().Root("events.>")}, Storage: jetstream.MemoryStorage, MaxAge: time.Hour,
	})
	p := plan(t, b, topology.New(b.Names(), topology.Config{}))
	mention(t, p.String(),
		"refuse  "+b.Names().EventsStream()+"\n",
		"        storage: have memory, want file (refused): the server cannot change it",
		"        max_age: have 1h0m0s, want unlimited\n",
		"create  "+b.Names().DLQStream()+"\n")
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	mention(t, string(body), `"stream":"`+b.Names().DLQStream()+`","action":"create"`,
		`{"setting":"max_age","have":"1h0m0s","want":"unlimited","safe":true}`)
}

func TestPlanEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := topology.NewPlan(ctx, b, topology.New(b.Names(), topology.Config{})); !errors.Is(err, context.Canceled) || !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
