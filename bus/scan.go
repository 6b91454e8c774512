package bus

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// scanBatch is how many documents are asked for at once.
	scanBatch = 256
	// scanIdle is when the server forgets a scan whose reader has died.
	scanIdle = 30 * time.Second
	// scanCleanUp bounds what a scan does after its end.
	scanCleanUp = time.Second
)

// scan reads what a bucket's stream holds, through a consumer of its own. A
// watch of the client would not do: it keeps a goroutine for ever when it is
// left early, and when the connection is closed it looks as if all had been
// seen. Nor would an ordered consumer: it does not mind the context while it
// waits for a lost server.
type scan struct {
	bus      *Bus
	stream   string
	consumer jetstream.Consumer
	received uint64
	more     bool
}

// document is one document as the stream holds it.
type document struct {
	subject  string
	revision uint64
	data     []byte
}

// Scan calls f for each message that a stream holds on the filter's subjects,
// oldest first, but for those that mark a deletion; also for what is stored
// while it runs. It ends with the first error of f. Other errors match
// [ErrNoStream], [ErrDenied], [ErrUnavailable] or [ErrClosed], or are ctx's
// cause: a part is never told to be all.
func (b *Bus) Scan(ctx context.Context, stream, filter string, f func(subject string, revision uint64, data []byte) error) error {
	s, err := b.scan(ctx, stream, filter)
	if err != nil {
		return fmt.Errorf("bus: scan %s: %w", filter, err)
	}
	defer s.end(ctx)
	for s.more {
		documents, err := s.next(ctx)
		if err != nil {
			return fmt.Errorf("bus: scan %s: %w", filter, err)
		}
		for _, d := range documents {
			if ctx.Err() != nil {
				return fmt.Errorf("bus: scan %s: %w", filter, context.Cause(ctx))
			}
			if err := f(d.subject, d.revision, d.data); err != nil {
				return err
			}
		}
	}
	return nil
}

// scan begins one; it ends with [scan.end].
func (b *Bus) scan(ctx context.Context, stream, filter string) (*scan, error) {
	s := &scan{bus: b, stream: stream}
	cfg := jetstream.ConsumerConfig{
		Name:              "scan-" + rand.Text(),
		FilterSubject:     filter,
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy, // of a document there may be older versions for a moment
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: scanIdle,
	}
	err := b.Ask(ctx, "CONSUMER.CREATE."+stream+"."+cfg.Name, func(ctx context.Context) (err error) {
		s.consumer, err = b.js.CreateConsumer(ctx, stream, cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.more = s.consumer.CachedInfo().NumPending > 0
	return s, nil
}

// next returns the next documents, without those deleted, and sets more.
func (s *scan) next(ctx context.Context) (found []document, err error) {
	messages, err := s.bus.Fetch(ctx, s.consumer, scanBatch)
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, s.explain(ctx)
	}
	for _, m := range messages {
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// Nothing is acknowledged, so what got lost on the way does not come again.
		if s.received++; meta.Sequence.Consumer != s.received {
			return nil, fmt.Errorf("%w: a document was lost on the way", ErrUnavailable)
		}
		s.more = meta.NumPending > 0
		if !deletes(m.Headers()) {
			found = append(found, document{subject: m.Subject(), revision: meta.Sequence.Stream, data: m.Data()})
		}
	}
	return found, nil
}

// explain finds out why nothing came although something was to: it may have
// been removed meanwhile, and then the scan is over.
func (s *scan) explain(ctx context.Context) error {
	var info *jetstream.ConsumerInfo
	err := s.bus.ask(ctx, "CONSUMER.INFO."+s.stream, ErrUnavailable, func(ctx context.Context) (err error) {
		info, err = s.consumer.Info(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if info.NumPending > 0 || info.Delivered.Consumer > s.received {
		return fmt.Errorf("%w: no answer to the scan", ErrUnavailable)
	}
	s.more = false
	return nil
}

// Fetch returns what a consumer has ready, at most most messages. Errors are
// those of [Bus.Ask].
func (b *Bus) Fetch(ctx context.Context, c jetstream.Consumer, most int) (messages []jetstream.Msg, err error) {
	info := c.CachedInfo()
	err = b.ask(ctx, "CONSUMER.MSG.NEXT."+info.Stream+"."+info.Name, ErrUnavailable, func(ctx context.Context) error {
		batch, err := c.FetchNoWait(most)
		if err != nil {
			return err
		}
		for {
			select {
			case m, ok := <-batch.Messages():
				if !ok {
					return batch.Error()
				}
				messages = append(messages, m)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return messages, err
}

// end makes the server forget the scan.
func (s *scan) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scanCleanUp)
	defer cancel()
	if err := s.bus.js.DeleteConsumer(ctx, s.stream, s.consumer.CachedInfo().Name); err != nil {
		return // then it does so after scanIdle
	}
}

// deletes says whether a stored message is the end of a document, written by a
// client that deleted it or by the server whose time to live was over.
func deletes(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}
