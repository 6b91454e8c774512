package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

type doc struct {
	N int `json:"n"`
}

const (
	docs    = "docs"
	shortly = 500 * time.Millisecond
)

func openDocs(t *testing.T, b *bus.Bus) *bus.Bucket[doc] {
	t.Helper()
	k, err := bus.OpenBucket[doc](t.Context(), b, docs)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newDocs(t *testing.T) (*bus.Bus, *bus.Bucket[doc]) {
	t.Helper()
	b := bustest.Provision(t, bustest.NewBus(t), topology.Config{Buckets: []string{docs}})
	return b, openDocs(t, b)
}

// fill writes n documents, numbered in the order of their keys.
func fill(t *testing.T, b *bus.Bus, n int) {
	t.Helper()
	pending := make([]*bus.Pending, n)
	for i := range pending {
		var err error
		pending[i], err = b.Send(t.Context(), &nats.Msg{Subject: docSubject(b, fmt.Sprintf("k%05d", i)), Data: fmt.Appendf(nil, `{"n":%d}`, i)})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pending {
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func docSubject(b *bus.Bus, token string) string {
	return "$KV." + b.Names().Bucket(docs) + "." + token
}

func TestBucketGetAndPut(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	for _, key := range []event.Key{"plain", "a.b c/d*>", "é", event.Key(strings.Repeat("x", 200))} {
		if v, revision, err := k.Get(t.Context(), key); err != nil || revision != 0 || v != (doc{}) {
			t.Fatalf("%q before: %+v, %d, %v", key, v, revision, err)
		}
		first, err := k.Put(t.Context(), key, doc{N: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		second, err := k.Put(t.Context(), key, doc{N: 2}, first)
		if err != nil {
			t.Fatal(err)
		}
		for _, stale := range []uint64{0, first, second + 1} {
			if _, err := k.Put(t.Context(), key, doc{N: 3}, stale); !errors.Is(err, bus.ErrConflict) {
				t.Errorf("%q at revision %d: %v", key, stale, err)
			}
		}
		if v, revision, err := k.Get(t.Context(), key); err != nil || revision != second || v.N != 2 {
			t.Errorf("%q: %+v, %d, %v", key, v, revision, err)
		}
	}
	// Other clients see the same bucket.
	kv, err := b.JetStream().KeyValue(t.Context(), b.Names().Bucket(docs))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(t.Context(), "plain"); err != nil || string(e.Value()) != `{"n":2}` {
		t.Errorf("KeyValue: %v, %v", e, err)
	}
}

func TestBucketOfManyWritersHasOneWinner(t *testing.T) {
	t.Parallel()
	_, k := newDocs(t)
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = k.Put(t.Context(), "k", doc{N: i}, 0) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, bus.ErrConflict) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d writers won", won)
	}
}

// A key that was deleted or purged by hand, or whose marker the server has
// written, is free again.
func TestBucketKeyIsFreeAfterDeletion(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	kv, err := b.JetStream().KeyValue(t.Context(), b.Names().Bucket(docs))
	if err != nil {
		t.Fatal(err)
	}
	for name, remove := range map[string]func(key string) error{
		"delete": func(key string) error { return kv.Delete(t.Context(), key) },
		"purge":  func(key string) error { return kv.Purge(t.Context(), key) },
		"marker": func(key string) error {
			return publishTo(t, b, &nats.Msg{Subject: docSubject(b, key), Header: nats.Header{jetstream.MarkerReasonHeader: {"MaxAge"}}})
		},
	} {
		revision, err := k.Put(t.Context(), event.Key(name), doc{N: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := remove(name); err != nil {
			t.Fatal(err)
		}
		v, now, err := k.Get(t.Context(), event.Key(name))
		if err != nil || v != (doc{}) || now <= revision {
			t.Errorf("%s: %+v, %d, %v", name, v, now, err)
		}
		err = k.Each(t.Context(), func(token string, v doc, _ uint64) error { return fmt.Errorf("%s is there: %+v", token, v) })
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := k.Put(t.Context(), event.Key(name), doc{N: 2}, now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := kv.Purge(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBucketThatDoesNotExist(t *testing.T) {
	t.Parallel()
	_, err := bus.OpenBucket[doc](t.Context(), bustest.NewBus(t), docs)
	if !errors.Is(err, bus.ErrNoStream) || !strings.Contains(err.Error(), "farandole topology apply") {
		t.Error(err)
	}
}

func TestBucketEachSeesAll(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	if err := k.Each(t.Context(), func(string, doc, uint64) error { return errors.New("called") }); err != nil {
		t.Fatalf("empty: %v", err)
	}
	const n = 2000 // more than any buffer on the way
	fill(t, b, n)
	var seen []int
	err := k.Each(t.Context(), func(token string, v doc, revision uint64) error {
		if token != fmt.Sprintf("k%05d", v.N) || revision == 0 {
			t.Errorf("%s is %+v at %d", token, v, revision)
		}
		seen = append(seen, v.N)
		return nil
	})
	slices.Sort(seen)
	if err != nil || len(seen) != n || seen[0] != 0 || seen[n-1] != n-1 {
		t.Fatalf("%d seen, %v", len(seen), err)
	}
}

// What is overwritten meanwhile is still seen, and what is written by the
// visitor itself does not make the scan endless.
func TestBucketEachSeesWhatIsWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	const n = 600
	fill(t, b, n)
	seen := map[string]int{}
	err := k.Each(t.Context(), func(token string, _ doc, revision uint64) error {
		if seen[token]++; seen[token] > 1 {
			return nil
		}
		_, err := k.Put(t.Context(), event.Key(token), doc{N: -1}, revision)
		if errors.Is(err, bus.ErrConflict) {
			return nil
		}
		return err
	})
	if err != nil || len(seen) != n {
		t.Fatalf("%d seen, %v", len(seen), err)
	}
}

var errEnough = errors.New("enough")

// Stopping early leaves nothing running: bustest.Main looks for it.
func TestBucketEachEndsEarly(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	fill(t, b, 2000)
	for range 5 {
		if err := k.Each(t.Context(), func(string, doc, uint64) error { return errEnough }); !errors.Is(err, errEnough) {
			t.Errorf("visitor: %v", err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	calls := 0
	err := k.Each(ctx, func(string, doc, uint64) error {
		if calls++; calls == 3 {
			cancel(errEnough)
		}
		return nil
	})
	if !errors.Is(err, errEnough) || calls != 3 {
		t.Errorf("cancelled: %v after %d calls", err, calls)
	}
}

// One unreadable document hides no other one.
func TestBucketUnreadableDocument(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	fill(t, b, 10)
	for _, token := range []string{"k00000", "k00005"} {
		if err := publishTo(t, b, &nats.Msg{Subject: docSubject(b, token), Data: []byte("{")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := k.Get(t.Context(), "k00005"); !errors.Is(err, event.ErrDecode) {
		t.Errorf("Get: %v", err)
	}
	seen := 0
	err := k.Each(t.Context(), func(string, doc, uint64) error { seen++; return nil })
	if !errors.Is(err, event.ErrDecode) || !strings.Contains(err.Error(), "k0000") || seen != 8 {
		t.Errorf("Each: %v, %d seen", err, seen)
	}
}

// A part of the bucket is never told to be all of it.
func TestBucketEachOnALostConnection(t *testing.T) {
	t.Parallel()
	b, _ := newDocs(t)
	fill(t, b, 2000)
	other := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: b.Names()})
	k := openDocs(t, other)
	calls := 0
	err := k.Each(t.Context(), func(string, doc, uint64) error {
		if calls++; calls == 1 {
			return other.Close()
		}
		return nil
	})
	if err == nil && calls < 2000 {
		t.Fatalf("%d of 2000 seen, and no error", calls)
	}
	if err != nil && !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrClosed) {
		t.Error(err)
	}
}

func TestBucketWithoutServer(t *testing.T) {
	t.Parallel()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{InProcess: server, Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{Buckets: []string{docs}})
	k := openDocs(t, b)
	server.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), shortly)
	defer cancel()
	if _, _, err := k.Get(ctx, "k"); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("Get: %v", err)
	}
	if _, err := k.Put(ctx, "k", doc{}, 0); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("Put: %v", err)
	}
	if err := k.Each(ctx, func(string, doc, uint64) error { return nil }); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("Each: %v", err)
	}
	if _, err := bus.OpenBucket[doc](ctx, b, docs); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("OpenBucket: %v", err)
	}
}

// A user that may open the bucket and nothing else.
func TestA_denied_bucket_is_told_at_once(t *testing.T) {
	t.Parallel()
	names := event.Names{Prefix: bustest.Prefix()}
	bucket := "KV_" + names.Bucket(docs)
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "reader", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"$JS.API.INFO", "$JS.API.STREAM.INFO." + bucket}},
			}},
			{Username: "nobody", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"$JS.API.INFO"}},
			}},
		}
	}})
	login := func(user string) *bus.Bus {
		return bustest.Connect(t, bus.Config{URL: s.URL(), User: user, Password: "p", Names: names})
	}
	bustest.Provision(t, login("admin"), topology.Config{Buckets: []string{docs}})
	k := openDocs(t, login("reader"))
	stranger := login("nobody")
	for subject, do := range map[string]func() error{
		"$JS.API.STREAM.INFO." + bucket: func() error {
			_, err := bus.OpenBucket[doc](t.Context(), stranger, docs)
			return err
		},
		"$JS.API.DIRECT.GET." + bucket: func() error { _, _, err := k.Get(t.Context(), "k"); return err },
		"$KV.":                         func() error { _, err := k.Put(t.Context(), "k", doc{}, 0); return err },
		"$JS.API.CONSUMER.CREATE." + bucket: func() error {
			return k.Each(t.Context(), func(string, doc, uint64) error { return nil })
		},
	} {
		if err := do(); !errors.Is(err, bus.ErrDenied) || !strings.Contains(err.Error(), subject) {
			t.Errorf("%s: %v", subject, err)
		}
	}
}
