// Package rest counts what a system's consumers have left to do: for the demo, which
// waits for the end, and for tests.
package rest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Open counts the messages of the event stream that consumers have not settled: those
// of every durable, and one for each partition of these consumers that nobody reads,
// which is each of them before the consumer's first process has taken it. A durable
// whose process no longer owns a partition does not count: the server forgets it in a
// while. last is the stream's last sequence.
func Open(ctx context.Context, b *bus.Bus, consumers ...event.Consumer) (open int, last uint64, err error) {
	name := b.Names().EventsStream()
	stream, err := b.Stream(ctx, name)
	if err != nil {
		return 0, 0, fmt.Errorf("rest: look at the stream: %w", err)
	}
	var durables []*jetstream.ConsumerInfo
	err = b.Ask(ctx, "CONSUMER.LIST."+name, func(ctx context.Context) error {
		durables = nil
		list := stream.ListConsumers(ctx)
		for info := range list.Info() {
			if info.Config.Durable != "" {
				durables = append(durables, info)
			}
		}
		return list.Err()
	})
	if err != nil {
		return 0, 0, fmt.Errorf("rest: look at consumers: %w", err)
	}
	owners, err := ownersOf(ctx, b, consumers)
	if err != nil {
		return 0, 0, err
	}
	for _, c := range consumers {
		owned := 0
		for _, o := range owners {
			if o.consumer == c {
				owned++
			}
		}
		whole := slices.ContainsFunc(durables, func(d *jetstream.ConsumerInfo) bool { return d.Config.Durable == string(c) })
		if owned > 0 || !whole {
			open += bus.Partitions(stream.CachedInfo().Config) - owned
		}
	}
	for _, o := range owners {
		if o.farewell || !slices.ContainsFunc(durables, o.reads(b.Names())) {
			open++
		}
	}
	for _, d := range durables {
		left := strings.Contains(d.Config.Durable, "-") && d.Config.InactiveThreshold > 0 &&
			!slices.ContainsFunc(owners, func(o owner) bool { return o.has(d) })
		if !left {
			open += int(d.NumPending) + d.NumAckPending //nolint:gosec // small numbers
		}
	}
	return open, stream.CachedInfo().State.LastSeq, nil
}

// owner is who has one partition of a consumer.
type owner struct {
	consumer  event.Consumer
	partition int
	member    string
	farewell  bool // and has gone
}

func ownersOf(ctx context.Context, b *bus.Bus, consumers []event.Consumer) (owners []owner, err error) {
	l, err := dedup.NewPartitions(b, dedup.PartitionsConfig{Logger: zerolog.Nop()})
	if err != nil {
		return nil, fmt.Errorf("rest: %w", err)
	}
	for _, c := range consumers {
		heads, err := l.Heads(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("rest: %w", err)
		}
		for _, h := range heads {
			owners = append(owners, owner{c, h.Partition, h.Owner, h.Farewell})
		}
	}
	return owners, nil
}

// has reports whether a durable is the owner's.
func (o owner) has(d *jetstream.ConsumerInfo) bool {
	return strings.HasPrefix(d.Config.Durable, string(o.consumer)+"-"+o.member+"-")
}

// reads returns whether a durable is one with which the owner reads its partition.
func (o owner) reads(n event.Names) func(d *jetstream.ConsumerInfo) bool {
	subject := n.RedrivePartitionFilter(o.consumer, o.partition)
	return func(d *jetstream.ConsumerInfo) bool {
		return o.has(d) && slices.ContainsFunc(d.Config.FilterSubjects, func(f string) bool { return event.SubjectCovers(f, subject) })
	}
}
