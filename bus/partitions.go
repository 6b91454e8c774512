package bus

import (
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// Partitions is into how many partitions a stream with this configuration puts the
// keys of its events, 0 if it has none.
func Partitions(cfg jetstream.StreamConfig) int {
	if cfg.SubjectTransform == nil {
		return 0
	}
	partitions, _ := event.PartitionsIn(cfg.SubjectTransform.Destination)
	return partitions
}
