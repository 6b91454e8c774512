package topology

import (
	"cmp"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

const (
	// DefaultDuplicates is how long the event stream recognises a message id.
	DefaultDuplicates = 2 * time.Minute
	// markerTTL is how long a KV bucket remembers that a key's time is over.
	markerTTL = time.Hour
	// memberAge is how long a member counts as alive after it has last said so.
	memberAge = 4 * time.Second
	// memberMarkerTTL is how long the server keeps what tells watchers that a member
	// is gone: the shortest that it takes.
	memberMarkerTTL = time.Second
)

// Topology is the streams and buckets a system wants.
type Topology struct {
	Streams []jetstream.StreamConfig

	anyPartitions bool // an event stream that exists may have as many as it has
}

// Config are the choices of [New].
type Config struct {
	// Replicas of every stream. Defaults to 1.
	Replicas int
	// Partitions is into how many the event stream puts the keys, from 1 to
	// [event.MaxPartitions]: as many processes can share the work of one consumer
	// with the partition ledger. Defaults to those that the stream has, also if
	// these are none; a new stream has [event.DefaultPartitions].
	Partitions int
	// Buckets are the KV buckets, besides dedup, state, pauses and members. Defaults to none.
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
	t := Topology{
		Streams:       []jetstream.StreamConfig{timersStream(names, cfg), eventsStream(names, cfg), dlqStream(names, cfg)},
		anyPartitions: cfg.Partitions == 0,
	}
	for _, bucket := range append([]string{"dedup", event.StateBucket, event.PausesBucket}, cfg.Buckets...) {
		t.Streams = append(t.Streams, bucketStream(names.Bucket(bucket), cfg))
	}
	t.Streams = append(t.Streams, membersStream(names.Bucket(event.MembersBucket), cfg))
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
	source, destination := names.PartitionTransform(cmp.Or(cfg.Partitions, event.DefaultPartitions))
	s.SubjectTransform = &jetstream.SubjectTransformConfig{Source: source, Destination: destination}
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

// membersStream is the bucket of those who own partitions: who says nothing for a
// while is not in it any more, and watchers are told. It is a file: in memory its
// sequences would begin anew with the server, and watchers miss what has a lower one.
func membersStream(bucket string, cfg Config) jetstream.StreamConfig {
	s := bucketStream(bucket, cfg)
	s.MaxAge, s.Duplicates, s.SubjectDeleteMarkerTTL = memberAge, memberAge, memberMarkerTTL
	return s
}

func unlimited(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}
