package topology

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

const (
	// DefaultDuplicates is how long the event stream recognises a message id.
	DefaultDuplicates = 2 * time.Minute
	// markerTTL is how long a KV bucket remembers that a key's time is over.
	markerTTL = time.Hour
)

// Topology is the streams and buckets a system wants.
type Topology struct {
	Streams []jetstream.StreamConfig
}

// Config are the choices of [New].
type Config struct {
	// Replicas of every stream. Defaults to 1.
	Replicas int
	// Buckets are the KV buckets, besides dedup and state. Defaults to none.
	Buckets []string
	// Duplicates is how long the event stream recognises a message id, so that
	// publishing again stores nothing. It must not exceed EventsMaxAge.
	// Defaults to 2 minutes.
	Duplicates time.Duration
	// EventsMaxAge is how long events are kept. Defaults to no limit.
	EventsMaxAge time.Duration
	// EventsMaxBytes bounds the event stream, whose oldest messages make room
	// for new ones. Defaults to no limit.
	EventsMaxBytes int64
	// DLQMaxMsgs and DLQMaxBytes bound the dead letters; a full stream refuses
	// new ones, and their messages stay pending. Defaults to no limit.
	DLQMaxMsgs, DLQMaxBytes int64
}

// New returns what this system wants: the streams of timers, events and
// dead letters, and the KV buckets. It asks nobody; see [Provision].
func New(names event.Names, cfg Config) Topology {
	t := Topology{Streams: []jetstream.StreamConfig{timersStream(names, cfg), eventsStream(names, cfg), dlqStream(names, cfg)}}
	for _, bucket := range append([]string{"dedup", event.StateBucket}, cfg.Buckets...) {
		t.Streams = append(t.Streams, bucketStream(names.Bucket(bucket), cfg))
	}
	return t
}

// timersStream allows what the event stream must not: a publisher's roll-up of
// "all" erases a stream.
func timersStream(names event.Names, cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              names.TimersStream(),
		Description:       "Farandole timers and retries that are put off",
		Subjects:          []string{names.Root("timer.>"), names.Root("due.>")},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardOld,
		Replicas:          max(cfg.Replicas, 1),
		MaxBytes:          -1,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Duplicates:        DefaultDuplicates,
		AllowMsgTTL:       true,
		AllowMsgSchedules: true,
		AllowRollup:       true,
		AllowDirect:       true,
	}
}

// dueTransforms are what the event stream takes from the stream of timers: events and redrives, nothing else.
func dueTransforms(names event.Names) []jetstream.SubjectTransformConfig {
	var transforms []jetstream.SubjectTransformConfig
	for _, subject := range []string{names.Root("events.>"), names.Root("redrive.>")} {
		transforms = append(transforms, jetstream.SubjectTransformConfig{Source: names.DueSubject(subject), Destination: subject})
	}
	return transforms
}

func eventsStream(names event.Names, cfg Config) jetstream.StreamConfig {
	s := jetstream.StreamConfig{
		Name:               names.EventsStream(),
		Description:        "Farandole events, redrives, ledger marks and state",
		Retention:          jetstream.LimitsPolicy,
		Storage:            jetstream.FileStorage,
		Discard:            jetstream.DiscardOld,
		Replicas:           max(cfg.Replicas, 1),
		MaxAge:             cfg.EventsMaxAge,
		MaxBytes:           unlimited(cfg.EventsMaxBytes),
		MaxMsgs:            -1,
		MaxMsgsPerSubject:  -1,
		MaxMsgSize:         -1,
		MaxConsumers:       -1,
		Duplicates:         cfg.Duplicates,
		AllowAtomicPublish: true,
		AllowMsgTTL:        true,
		AllowDirect:        true,
		Sources:            []*jetstream.StreamSource{{Name: names.TimersStream(), SubjectTransforms: dueTransforms(names)}},
	}
	if s.Duplicates == 0 {
		s.Duplicates = DefaultDuplicates
	}
	for _, root := range []string{"events.>", "redrive.>", "ledger.>", "state.>"} {
		s.Subjects = append(s.Subjects, names.Root(root))
	}
	return s
}

func dlqStream(names event.Names, cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              names.DLQStream(),
		Description:       "Farandole dead letters",
		Subjects:          []string{names.Root("dlq.>")},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardNew,
		Replicas:          max(cfg.Replicas, 1),
		MaxBytes:          unlimited(cfg.DLQMaxBytes),
		MaxMsgs:           unlimited(cfg.DLQMaxMsgs),
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Duplicates:        DefaultDuplicates,
		AllowDirect:       true,
	}
}

// bucketStream is the stream that jetstream.CreateKeyValue makes for a bucket
// with a history of one and a time to live for each key.
func bucketStream(bucket string, cfg Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                   "KV_" + bucket,
		Description:            "Farandole bucket " + bucket,
		Subjects:               []string{"$KV." + bucket + ".>"},
		Retention:              jetstream.LimitsPolicy,
		Storage:                jetstream.FileStorage,
		Discard:                jetstream.DiscardNew,
		Replicas:               max(cfg.Replicas, 1),
		MaxBytes:               -1,
		MaxMsgs:                -1,
		MaxMsgsPerSubject:      1,
		MaxMsgSize:             -1,
		MaxConsumers:           -1,
		Duplicates:             DefaultDuplicates,
		AllowRollup:            true,
		DenyDelete:             true,
		AllowDirect:            true,
		AllowMsgTTL:            true,
		SubjectDeleteMarkerTTL: markerTTL,
	}
}

func unlimited(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}
