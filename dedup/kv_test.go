package dedup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func TestKV(t *testing.T) {
	t.Parallel()
	deduptest.Run(t, kvFactory(t))
}

func TestKV_model(t *testing.T) {
	t.Parallel()
	deduptest.RunModel(t, kvFactory(t), false)
}

// kvFactory gives tests whose marks do not end the same bucket.
func kvFactory(tb testing.TB) deduptest.Factory {
	tb.Helper()
	shared := bustest.NewBus(tb)
	return func(t *testing.T, retention time.Duration) deduptest.Backend {
		t.Helper()
		b := shared
		if retention < time.Hour {
			b = bustest.NewBus(t)
		}
		return deduptest.Backend{
			Open:   func() deduptest.Ledger { return newKV(t, b, dedup.Config{Retention: retention}) },
			Names:  b.Names(),
			Stored: func(subject string) int { return stored(t, b, subject) },
			Marks:  func() int { return len(marks(t, b)) },
			Pass:   func(d time.Duration) { <-time.After(d) },
		}
	}
}

func newKV(tb testing.TB, b *bus.Bus, cfg dedup.Config) *dedup.KV {
	tb.Helper()
	l, err := dedup.NewKV(b, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// stored counts the messages on a subject.
func stored(t *testing.T, b *bus.Bus, subject string) int {
	t.Helper()
	name, err := b.JetStream().StreamNameBySubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := b.JetStream().Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(b.Names().Stored(subject, event.DefaultPartitions)))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.State.Subjects[b.Names().Stored(subject, event.DefaultPartitions)])
}

// marks lists the keys as any KV client sees them.
func marks(t *testing.T, b *bus.Bus) []string {
	t.Helper()
	kv, err := b.JetStream().KeyValue(t.Context(), b.Names().Bucket(dedup.DefaultBucket))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		t.Fatal(err)
	}
	return keys
}

func claimOf(k event.EventKey) dedup.Request {
	return dedup.Request{Consumer: "payment", Key: k, Lease: time.Minute}
}

// Marks are ordinary KV entries: other clients read them, and may delete one.
func TestKV_marks_are_kv_entries(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l, k := newKV(t, b, dedup.Config{}), event.NewEventKey("/shop", "1")
	kv, err := b.JetStream().KeyValue(t.Context(), b.Names().Bucket(dedup.DefaultBucket))
	if err != nil {
		t.Fatal(err)
	}
	key := "payment." + string(k)
	for name, remove := range map[string]func() error{
		"deleted": func() error { return kv.Delete(t.Context(), key) },
		"purged":  func() error { return kv.Purge(t.Context(), key) },
	} {
		c, err := l.Claim(t.Context(), claimOf(k))
		if err != nil || c.Status != dedup.Claimed {
			t.Fatalf("claim: %+v, %v", c, err)
		}
		if err := l.Complete(t.Context(), c, nil); err != nil {
			t.Fatal(err)
		}
		e, err := kv.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", e.Value())
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if _, known, err := l.Mark(t.Context(), "payment", k); known || err != nil {
			t.Fatalf("%s mark: known %v, %v", name, known, err)
		}
		if err := l.Complete(t.Context(), c, nil); err != nil {
			t.Fatalf("complete again: %v", err)
		}
	}
	c, err := l.Claim(t.Context(), claimOf(k))
	if err != nil || c.Status != dedup.Claimed {
		t.Fatalf("claim: %+v, %v", c, err)
	}
	if err := kv.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), c, nil); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Fatalf("complete after the mark was deleted: got %v, want ErrLeaseLost", err)
	}
	if _, err := kv.PutString(t.Context(), key, "junk"); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Claim(t.Context(), claimOf(k)); !errors.Is(err, dedup.ErrBadMark) {
		t.Fatalf("claim of an unreadable mark: got %+v, %v; want ErrBadMark", c, err)
	}
}

func TestKV_prepare(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	if err := newKV(t, b, dedup.Config{}).Prepare(t.Context(), 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	js := b.JetStream()
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "plain", MaxMsgsPerSubject: 1},
		{Name: "history", MaxMsgsPerSubject: 2, AllowMsgTTL: true},
		{Name: "evicting", MaxMsgsPerSubject: 1, AllowMsgTTL: true, MaxMsgs: 10, Discard: jetstream.DiscardOld},
		{Name: "aging", MaxMsgsPerSubject: 1, AllowMsgTTL: true, MaxAge: time.Hour},
	} {
		bucket := cfg.Name
		cfg.Name = "KV_" + b.Names().Bucket(bucket)
		cfg.Subjects = []string{"$KV." + b.Names().Bucket(bucket) + ".>"}
		if _, err := js.CreateStream(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := js.DeleteStream(ctx, cfg.Name); err != nil {
				t.Error(err)
			}
		})
		err := newKV(t, b, dedup.Config{Bucket: bucket}).Prepare(t.Context(), time.Hour)
		if !errors.Is(err, dedup.ErrNoBucket) {
			t.Errorf("%s: got %v, want ErrNoBucket", bucket, err)
		}
		t.Log(err)
	}
	absent := newKV(t, b, dedup.Config{Bucket: "absent"})
	if err := absent.Prepare(t.Context(), time.Hour); !errors.Is(err, dedup.ErrNoBucket) {
		t.Errorf("absent: got %v, want ErrNoBucket", err)
	}
	if c, err := absent.Claim(t.Context(), claimOf(event.NewEventKey("/shop", "1"))); !errors.Is(err, dedup.ErrNoBucket) {
		t.Errorf("claim without a bucket: got %+v, %v; want ErrNoBucket", c, err)
	}
	err := newKV(t, b, dedup.Config{Retention: time.Minute}).Prepare(t.Context(), time.Hour)
	if !errors.Is(err, dedup.ErrConfig) {
		t.Errorf("short retention: got %v, want ErrConfig", err)
	}
	t.Log(err)
}

// TestKV_done_mark_is_small keeps the memory formula in the package's doc honest.
func TestKV_done_mark_is_small(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l := newKV(t, b, dedup.Config{})
	const events = 100
	for i := range events {
		c, err := l.Claim(t.Context(), claimOf(event.NewEventKey("/shop", string(rune('a'+i)))))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Complete(t.Context(), c, nil); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := b.JetStream().Stream(t.Context(), "KV_"+b.Names().Bucket(dedup.DefaultBucket))
	if err != nil {
		t.Fatal(err)
	}
	prefix := uint64(len(b.Names().Prefix) + 1)
	size := stream.CachedInfo().State.Bytes/events - prefix
	t.Logf("a done mark is stored in %d bytes", size)
	if size > 220 {
		t.Fatalf("a done mark is stored in %d bytes, want at most 220", size)
	}
}
