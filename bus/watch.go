package bus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

const (
	// watchHeartbeat is how often the server shows that it has a watch.
	watchHeartbeat = time.Second
	// watchForgotten is when the server forgets the watch of a process that has died.
	watchForgotten = 30 * time.Second
	// watchCleanUp bounds what a watch does after its end.
	watchCleanUp = time.Second
	// watchNames begins the names of watches at the server: watch-<connection>-<watch>.
	watchNames = "watch-"
)

// errGap is why a watch ends that has missed a message.
var errGap = errors.New("a message was lost on the way")

// Watch calls f with the document under key as it is now, and again after each
// change, on the caller's goroutine; the zero T and revision 0 stand for none. It
// returns when ctx ends or something fails: begin it again, it misses nothing that
// lasts. Errors match [event.ErrDecode], [ErrNoStream] when the bucket is gone,
// [ErrDenied], [ErrUnavailable] or [ErrClosed], or are ctx's cause.
func (k *Bucket[T]) Watch(ctx context.Context, key event.Key, f func(value T, revision uint64)) (err error) {
	wrap := func(err error) error { return fmt.Errorf("bus: bucket %s: watch %s: %w", k.name, key, err) }
	consumer, err := k.watcher(ctx, key)
	if err != nil {
		return wrap(err)
	}
	defer k.unwatch(ctx, consumer)
	ctx, refused := k.bus.Guard(ctx, "CONSUMER.MSG.NEXT.KV_"+k.name)
	defer func() { err = wrap(refused(err)) }()
	messages, err := consumer.Messages(jetstream.PullHeartbeat(watchHeartbeat))
	if err != nil {
		return requestFault(err, ErrUnavailable)
	}
	defer messages.Stop()
	if consumer.CachedInfo().NumPending == 0 {
		var none T
		f(none, 0)
	}
	for received := uint64(1); ; received++ {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return watchFault(ctx, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return requestFault(err, ErrUnavailable)
		}
		if meta.Sequence.Consumer != received {
			return fmt.Errorf("%w: %w", ErrUnavailable, errGap) // nothing is acknowledged, so it does not come again
		}
		var value T
		if !deletes(m.Headers()) {
			if err := json.Unmarshal(m.Data(), &value); err != nil {
				return fmt.Errorf("%w: %w", event.ErrDecode, err)
			}
		}
		f(value, meta.Sequence.Stream)
	}
}

// watchFault is why a watch has ended.
func watchFault(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isAny(err, jetstream.ErrConsumerDeleted, jetstream.ErrNoHeartbeat, jetstream.ErrMsgIteratorClosed):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return requestFault(err, ErrUnavailable)
}

// watcher makes the watch at the server. A watch of the client library would stay
// deaf when the stream is made anew: it waits for a sequence that is far away.
func (k *Bucket[T]) watcher(ctx context.Context, key event.Key) (c jetstream.Consumer, err error) {
	stream, name := "KV_"+k.name, watchNames+k.bus.id+"-"+rand.Text()
	err = k.bus.Ask(ctx, "CONSUMER.CREATE."+stream+"."+name, func(ctx context.Context) (err error) {
		c, err = k.bus.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
			Name:              name,
			FilterSubject:     "$KV." + k.name + "." + event.EscapeKey(key),
			DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
			AckPolicy:         jetstream.AckNonePolicy,
			MemoryStorage:     true,
			Replicas:          1,
			InactiveThreshold: watchForgotten,
		})
		return err
	})
	return c, err
}

// unwatch makes the server forget the watch.
func (k *Bucket[T]) unwatch(ctx context.Context, c jetstream.Consumer) {
	if k.bus.Health() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), watchCleanUp)
	defer cancel()
	info := c.CachedInfo()
	if err := k.bus.js.DeleteConsumer(ctx, info.Stream, info.Name); err != nil {
		return // then it does so after watchForgotten
	}
}

// Watchers counts the connections that watch each key now, by the key as it is written
// in the subject ([event.EscapeKey]). One that has died without a word is counted for as
// long as the server takes it for connected. Errors match [ErrNoStream] when the bucket is
// gone, [ErrDenied], [ErrUnavailable] or [ErrClosed].
func (k *Bucket[T]) Watchers(ctx context.Context) (map[string]int, error) {
	counts, seen := map[string]int{}, map[string]bool{}
	err := k.bus.Ask(ctx, "CONSUMER.LIST.KV_"+k.name, func(ctx context.Context) error {
		list := k.stream.ListConsumers(ctx)
		for c := range list.Info() {
			rest, watches := strings.CutPrefix(c.Name, watchNames)
			id, _, _ := strings.Cut(rest, "-")
			token := strings.TrimPrefix(c.Config.FilterSubject, "$KV."+k.name+".")
			if who := token + " " + id; watches && c.NumWaiting > 0 && !seen[who] {
				seen[who] = true
				counts[token]++
			}
		}
		return list.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("bus: bucket %s: watchers: %w", k.name, err)
	}
	return counts, nil
}
