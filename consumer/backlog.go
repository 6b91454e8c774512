package consumer

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/event"
)

// Backlog counts by event type what is stored for a consumer and was never delivered,
// seen from where s saw its durables. A consumer with partitions has none that could
// tell: then it is empty. Errors are those of [List].
func Backlog(ctx context.Context, b *bus.Bus, s Status) (map[event.Type]uint64, error) {
	types := map[event.Type]uint64{}
	if s.Partitions != nil {
		return types, nil
	}
	names := b.Names()
	for _, d := range s.Durables {
		for _, filter := range d.Subjects {
			rest, ok := strings.CutPrefix(filter, names.Root("events."))
			tokens := strings.Split(rest, ".")
			if !ok || len(tokens) < 4 {
				continue
			}
			t := event.Type(strings.Join(tokens[:3], "."))
			types[t] += 0
			if d.Pending == 0 {
				continue
			}
			n, err := durable.CountPending(ctx, b, names.EventsStream(), jetstream.ConsumerConfig{
				FilterSubject: filter, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: d.delivered + 1,
			})
			if err != nil {
				return nil, fmt.Errorf("consumer: backlog of %s: %w", s.Consumer, err)
			}
			types[t] += n
		}
	}
	return types, nil
}
