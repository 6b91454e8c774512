package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
)

// System is where a system stands. Its parts were read one after another, so they
// need not fit together while it works.
type System struct {
	At        time.Time  `json:"at"` // by this machine's clock
	Streams   []Stream   `json:"streams"`
	Consumers []Consumer `json:"consumers"`
	// DeadLetters and Replays are sums over the consumers.
	DeadLetters int `json:"dead_letters"`
	Replays     int `json:"replays"`

	// Letters is what is known of them by kind.
	Letters dlq.Stats `json:"-"`
}

// Stream is what the server keeps of one stream.
type Stream struct {
	Name     string `json:"name"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// MaxMessages and MaxBytes are its limits; 0 is none.
	MaxMessages int64 `json:"max_messages,omitempty"`
	MaxBytes    int64 `json:"max_bytes,omitempty"`
	// Oldest and Newest are when its first and last message were stored.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// Replicas are wanted, Current of them have all messages.
	Replicas int `json:"replicas"`
	Current  int `json:"current"`
}

// Consumer is where a consumer stands, and its dead letters.
type Consumer struct {
	consumer.Status
	// DeadLetters are those that nobody replays, Replays those that are being replayed.
	DeadLetters int `json:"dead_letters"`
	Replays     int `json:"replays"`
	// Gone says that the event stream knows no such consumer (any more): only what
	// waits for it is there.
	Gone bool `json:"gone,omitempty"`
}

// Read reads where the system of b stands. Errors match [bus.ErrNoStream] if it has no
// event stream, [bus.ErrDenied], [bus.ErrUnavailable] or [bus.ErrClosed].
func Read(ctx context.Context, b *bus.Bus) (System, error) {
	s := System{At: time.Now().UTC()}
	var err error
	if s.Streams, err = streams(ctx, b); err != nil {
		return System{}, fmt.Errorf("status: %w", err)
	}
	known, err := consumer.List(ctx, b)
	if err != nil {
		return System{}, fmt.Errorf("status: %w", err)
	}
	queue, err := letters.Open(b)
	if err == nil {
		s.Letters, err = queue.Stats(ctx)
	}
	if err != nil && !errors.Is(err, bus.ErrNoStream) {
		return System{}, fmt.Errorf("status: %w", err)
	}
	s.join(known)
	return s, nil
}

// join puts consumers and letters together.
func (s *System) join(known []consumer.Status) {
	all := map[event.Consumer]*Consumer{}
	of := func(c event.Consumer) *Consumer {
		if all[c] == nil {
			all[c] = &Consumer{Status: consumer.Status{Consumer: c, Unattended: true, Durables: []consumer.DurableStatus{}}, Gone: true}
		}
		return all[c]
	}
	for _, k := range known {
		all[k.Consumer] = &Consumer{Status: k}
	}
	for c, reasons := range s.Letters.Consumers {
		for _, n := range reasons {
			of(c).DeadLetters += n
		}
	}
	for _, r := range s.Letters.Replays {
		n := r.Waiting + r.Running + r.Retrying + r.Lost + r.Handled
		of(r.Consumer).Replays = n
		of(r.Consumer).DeadLetters -= n
	}
	for _, w := range s.Letters.Stranded {
		if c := of(w.Consumer); c.Gone {
			c.Retries, c.Deferred = w.Deferred+w.Arrived, w.Deferred
		}
	}
	s.Consumers = make([]Consumer, 0, len(all))
	for _, c := range all {
		s.DeadLetters, s.Replays = s.DeadLetters+c.DeadLetters, s.Replays+c.Replays
		s.Consumers = append(s.Consumers, *c)
	}
	slices.SortFunc(s.Consumers, func(a, b Consumer) int { return strings.Compare(string(a.Consumer), string(b.Consumer)) })
}

// streams reads those that grow: events, timers, dead letters and the ledger's marks.
// Only the first has to be there.
func streams(ctx context.Context, b *bus.Bus) (all []Stream, err error) {
	n := b.Names()
	for _, name := range []string{n.EventsStream(), n.TimersStream(), n.DLQStream(), "KV_" + n.Bucket("dedup")} {
		stream, err := b.Stream(ctx, name)
		if errors.Is(err, bus.ErrNoStream) && name != n.EventsStream() {
			continue
		}
		if err != nil {
			return nil, err
		}
		info := stream.CachedInfo()
		s := Stream{
			Name: name, Messages: info.State.Msgs, Bytes: info.State.Bytes,
			MaxMessages: max(0, info.Config.MaxMsgs), MaxBytes: max(0, info.Config.MaxBytes),
			Replicas: info.Config.Replicas, Current: 1,
		}
		if s.Messages > 0 {
			s.Oldest, s.Newest = info.State.FirstTime.UTC(), info.State.LastTime.UTC()
		}
		if info.Cluster != nil {
			for _, peer := range info.Cluster.Replicas {
				if peer.Current && !peer.Offline {
					s.Current++
				}
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// Full is how much of its limits a stream has used, from 0 to 1; ok is false if it
// has none.
func (s Stream) Full() (full float64, ok bool) {
	if s.MaxMessages > 0 {
		full, ok = float64(s.Messages)/float64(s.MaxMessages), true
	}
	if s.MaxBytes > 0 {
		full, ok = max(full, float64(s.Bytes)/float64(s.MaxBytes)), true
	}
	return full, ok
}
