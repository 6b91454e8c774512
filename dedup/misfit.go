package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// misfit names the message because of which a batch is incomplete: one that is
// not the stream's, or larger than the stream allows. The server leaves such a
// message out without a word, and says only of the last one what is wrong with
// it. If there is none, the error stays what it is.
func (b *batch) misfit(ctx context.Context, msgs []*nats.Msg, incomplete error) error {
	if !errors.Is(incomplete, bus.ErrIncomplete) {
		return incomplete
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := b.reader.open(ctx)
	if err != nil {
		return incomplete
	}
	cfg := stream.CachedInfo().Config
	for i, m := range msgs {
		var why error
		switch size := bus.PayloadSize(m); {
		case cfg.MaxMsgSize >= 0 && size > int64(cfg.MaxMsgSize):
			why = fmt.Errorf("%w: %d bytes, the stream %s takes %d", bus.ErrTooLarge, size, cfg.Name, cfg.MaxMsgSize)
		case !slices.ContainsFunc(cfg.Subjects, func(filter string) bool { return event.SubjectCovers(filter, m.Subject) }):
			why = fmt.Errorf("%w: it is not a subject of stream %s", bus.ErrRefused, cfg.Name)
		default:
			continue
		}
		return &bus.BatchError{Index: i, Err: fmt.Errorf("dedup: publish %s: %w", m.Subject, why)}
	}
	return incomplete
}
