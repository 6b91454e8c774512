package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// scanIdle is when the server forgets a scan whose reader has died.
	scanIdle = 30 * time.Second
	// scanCleanUp bounds what a scan does after its end.
	scanCleanUp = time.Second
)

// ScanConfig chooses the messages that [Bus.ScanMessages] visits.
type ScanConfig struct {
	// Filter is a subject filter. Required.
	Filter string
	// From is the sequence to begin at. Defaults to the last message of each subject alone.
	From uint64
	// HeadersOnly leaves data at the server, which tells their size in a header.
	HeadersOnly bool
	// Batch is how many messages are asked for at once. Defaults to 256.
	Batch int
}

// Scan calls f for each message that a stream holds on the filter's subjects,
// oldest first, but for those that mark a deletion; also for what is stored
// while it runs. It ends with the first error of f. Other errors match
// [ErrNoStream], [ErrDenied], [ErrUnavailable] or [ErrClosed], or are ctx's
// cause: a part is never told to be all.
func (b *Bus) Scan(ctx context.Context, stream, filter string, f func(subject string, revision uint64, data []byte) error) error {
	return b.ScanMessages(ctx, stream, ScanConfig{Filter: filter}, func(m *nats.Msg, meta *nats.MsgMetadata) (bool, error) {
		if deletes(m.Header) {
			return true, nil
		}
		return true, f(m.Subject, meta.Sequence.Stream, m.Data)
	})
}

// ScanMessages is [Bus.Scan] for the messages themselves, those that mark a
// deletion too, until f returns false.
func (b *Bus) ScanMessages(ctx context.Context, stream string, cfg ScanConfig, f func(*nats.Msg, *nats.MsgMetadata) (more bool, err error)) error {
	wrap := func(err error) error { return fmt.Errorf("bus: scan %s: %w", cfg.Filter, err) }
	s, err := b.scan(ctx, stream, cfg)
	if err != nil {
		return wrap(err)
	}
	defer s.end(ctx)
	for s.more {
		messages, err := s.fetch(ctx, cmp.Or(cfg.Batch, 256))
		if err == nil && len(messages) == 0 {
			err = s.explain(ctx)
		}
		if err != nil {
			return wrap(err)
		}
		for _, m := range messages {
			meta, err := s.metadata(m)
			if err != nil {
				return wrap(err)
			}
			if ctx.Err() != nil {
				return wrap(context.Cause(ctx))
			}
			if more, err := f(m, meta); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// scan reads what a stream holds, through a consumer of its own. A watch of the
// client would not do: it keeps a goroutine for ever when it is left early, and
// when the connection is closed it looks as if all had been seen. Nor would an
// ordered consumer: it does not mind the context while it waits for a lost server.
type scan struct {
	bus      *Bus
	stream   string
	consumer jetstream.Consumer
	received uint64
	more     bool
}

// scan begins one; it ends with [scan.end].
func (b *Bus) scan(ctx context.Context, stream string, cfg ScanConfig) (*scan, error) {
	s := &scan{bus: b, stream: stream}
	name := "scan-" + rand.Text()
	consumer := jetstream.ConsumerConfig{
		Name:              name,
		FilterSubject:     cfg.Filter,
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy, // of a document there may be older versions for a moment
		HeadersOnly:       cfg.HeadersOnly,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: scanIdle,
	}
	if cfg.From > 0 {
		consumer.DeliverPolicy, consumer.OptStartSeq = jetstream.DeliverByStartSequencePolicy, cfg.From
	}
	err := b.Ask(ctx, "CONSUMER.CREATE."+stream+"."+name, func(ctx context.Context) (err error) {
		s.consumer, err = b.js.CreateConsumer(ctx, stream, consumer)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.more = s.consumer.CachedInfo().NumPending > 0
	return s, nil
}

// metadata reads a message's, and sets more. Nothing is acknowledged, so what got
// lost on the way does not come again.
func (s *scan) metadata(m *nats.Msg) (*nats.MsgMetadata, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if s.received++; meta.Sequence.Consumer != s.received {
		return nil, fmt.Errorf("%w: a message was lost on the way", ErrUnavailable)
	}
	s.more = meta.NumPending > 0
	return meta, nil
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
		return fmt.Errorf("%w: the scan got nothing, although there is more", ErrUnavailable)
	}
	s.more = false
	return nil
}

// fetch returns what is ready now, at most most messages. It waits for the server
// to say that this was all. The client's FetchNoWait takes a second of silence for
// that, and what comes after it gets lost. Errors are those of [Bus.Ask].
func (s *scan) fetch(ctx context.Context, most int) (messages []*nats.Msg, err error) {
	api := "CONSUMER.MSG.NEXT." + s.stream + "." + s.consumer.CachedInfo().Name
	err = s.bus.ask(ctx, api, ErrUnavailable, func(ctx context.Context) error {
		answers, err := s.bus.nc.SubscribeSync(s.bus.nc.NewInbox())
		if err != nil {
			return err
		}
		defer answers.Unsubscribe() //nolint:errcheck // it ends with the connection
		if err := s.bus.nc.PublishRequest(s.bus.APIPrefix()+api, answers.Subject, fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, most)); err != nil {
			return err
		}
		for len(messages) < most {
			m, err := answers.NextMsgWithContext(ctx)
			if err != nil {
				return err
			}
			switch status := m.Header.Get("Status"); status {
			case "":
				messages = append(messages, m)
			case "404", "408": // no message is left (ADR-13 of NATS)
				return nil
			default:
				return fmt.Errorf("bus: the scan got %s %s", status, m.Header.Get("Description"))
			}
		}
		return nil
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
