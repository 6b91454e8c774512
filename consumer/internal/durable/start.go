package durable

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Start says with which event of a stream a consumer begins that is new there. It is
// consumer.Start.
type Start struct {
	Now   bool
	Since time.Time
}

// Beginning is whose start on which stream is asked for.
type Beginning struct {
	Bus      *bus.Bus
	Ledger   dedup.Ledger
	Consumer event.Consumer
	Stream   string
	Start    Start
}

// Since returns from when on the consumer is given what the stream stores; zero is all
// that the stream keeps. One that is new begins at its Start. The ledger remembers that
// for ever: what was left out stays left out when a durable is made anew or a type is added.
func (b Beginning) Since(ctx context.Context, isNew bool) (time.Time, error) {
	known, _, err := b.Ledger.Subjects(ctx, b.Consumer)
	if err != nil {
		return time.Time{}, err
	}
	if at := startOf(known, b.Stream); !at.IsZero() || !isNew {
		return at, nil
	}
	at := b.Start.Since
	if b.Start.Now {
		if at, err = b.Bus.Clock(b.Stream).Now(ctx); err != nil {
			return time.Time{}, err
		}
	}
	if at.IsZero() {
		return at, nil
	}
	mark := startMark + " " + b.Stream + " " + at.UTC().Format(time.RFC3339Nano)
	return at, b.Ledger.Remember(ctx, b.Consumer, []string{mark})
}

// startMark stands where the ledger's subjects have a stream: no stream has a dot.
const startMark = ".start"

// startOf is the earliest start that is remembered, should two replicas have begun at once.
func startOf(known []string, stream string) (start time.Time) {
	for _, s := range known {
		text, ok := strings.CutPrefix(s, startMark+" "+stream+" ")
		if at, err := time.Parse(time.RFC3339Nano, text); ok && err == nil && (start.IsZero() || at.Before(start)) {
			start = at
		}
	}
	return start
}

// startAt makes a durable start at a time; zero is the beginning of the stream.
func startAt(cfg *jetstream.ConsumerConfig, at time.Time) {
	if !at.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &at
	}
}

// LogOld says that a new consumer will be given events that were stored before it began.
func (b Beginning) LogOld(ctx context.Context, log zerolog.Logger, old uint64, since time.Time) {
	if old == 0 {
		return
	}
	if s, err := b.Bus.Stream(ctx, b.Stream); err == nil && s.CachedInfo().State.FirstTime.After(since) {
		since = s.CachedInfo().State.FirstTime
	}
	line := log.Warn().Str("stream", b.Stream).Uint64("old_events", old)
	if !since.IsZero() {
		line = line.Time("stored_since", since)
	}
	line.Msg("this consumer name is new, and begins with old events that the stream keeps (Config.Start, or webhook --from-now, leaves them out)")
}

// LastBefore returns the sequence of the last message that a stream had stored before a time.
func LastBefore(ctx context.Context, b *bus.Bus, stream string, at time.Time) (last uint64, err error) {
	cfg := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at}
	err = probe(ctx, b, stream, cfg, func(info *jetstream.ConsumerInfo) { last = info.Delivered.Stream })
	if err != nil {
		return 0, fmt.Errorf("last event before %s: %w", at.Format(time.RFC3339), err)
	}
	return last, nil
}

// CountPending counts the messages that a consumer with these settings would be given.
func CountPending(ctx context.Context, b *bus.Bus, stream string, cfg jetstream.ConsumerConfig) (n uint64, err error) {
	err = probe(ctx, b, stream, cfg, func(info *jetstream.ConsumerInfo) { n = info.NumPending })
	return n, err
}

// probe looks at a consumer that is made for that alone.
func probe(ctx context.Context, b *bus.Bus, stream string, cfg jetstream.ConsumerConfig, look func(*jetstream.ConsumerInfo)) error {
	cfg.Name = "count-" + rand.Text()
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas, cfg.InactiveThreshold = jetstream.AckNonePolicy, true, 1, countIdle
	err := b.Ask(ctx, "CONSUMER.CREATE."+stream+"."+cfg.Name, func(ctx context.Context) error {
		made, err := b.JetStream().CreateConsumer(ctx, stream, cfg)
		if err == nil {
			look(made.CachedInfo())
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.Ask(ctx, "CONSUMER.DELETE."+stream+"."+cfg.Name, func(ctx context.Context) error {
		return b.JetStream().DeleteConsumer(ctx, stream, cfg.Name)
	})
}
