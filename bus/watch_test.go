package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// watching follows a key of the bucket, and hands what it sees to the channel.
func watching(t *testing.T, k *bus.Bucket[doc], key event.Key) (seen chan int, ended chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended = make(chan int, 100), make(chan error, 1)
	go func() {
		ended <- k.Watch(ctx, key, func(d doc, revision uint64) {
			if revision == 0 {
				d.N = -1
			}
			seen <- d.N
		})
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		for range ended { // until it has ended
		}
	})
	return seen, ended
}

func expect(t *testing.T, seen chan int, want int) {
	t.Helper()
	select {
	case got := <-seen:
		if got != want {
			t.Fatalf("saw %d, want %d", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("did not see %d", want)
	}
}

func TestWatchShowsWhatIsThereAndEachChange(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	seen, _ := watching(t, k, "a b")
	expect(t, seen, -1)
	revision := uint64(0)
	for n := range 3 {
		var err error
		if revision, err = k.Put(t.Context(), "a b", doc{n + 1}, revision); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Put(t.Context(), "other", doc{n}, uint64(2*n)); err != nil {
			t.Fatal(err)
		}
		expect(t, seen, n+1)
	}
	late, _ := watching(t, k, "a b")
	expect(t, late, 3)
	if err := b.Conn().PublishMsg(&nats.Msg{Subject: docSubject(b, event.EscapeKey("a b")), Header: nats.Header{"KV-Operation": {"DEL"}}}); err != nil {
		t.Fatal(err)
	}
	expect(t, seen, 0)
	expect(t, late, 0)
}

func TestWatchEndsWithItsBucket(t *testing.T) {
	t.Parallel()
	b, k := newDocs(t)
	seen, ended := watching(t, k, "a")
	expect(t, seen, -1)
	if err := b.JetStream().DeleteStream(t.Context(), "KV_"+b.Names().Bucket(docs)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("ended with %v", err)
	}
	if err := k.Watch(t.Context(), "a", func(doc, uint64) {}); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("watching a bucket that is gone: %v", err)
	}
}
