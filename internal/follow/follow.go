// Package follow reads a system's event stream without changing it, from a
// chosen place, to its end or for ever.
package follow

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Options choose what to read.
type Options struct {
	// Stream is the stream to read. Defaults to the event stream.
	Stream string
	// Filters are subject filters. Defaults to all events.
	Filters []string
	// FromStart begins with the oldest message. Defaults to what is stored from now on.
	FromStart bool
	// Since begins with what was stored at or after it; FromStart wins. Defaults to unset.
	Since time.Time
	// NoFollow stops at the message that was the last one when reading began.
	// Defaults to going on until ctx ends.
	NoFollow bool
}

// Message is one stored message.
type Message struct {
	Subject  string
	Sequence uint64
	Time     time.Time // when it was stored, by the server's clock
	Header   nats.Header
	Data     []byte

	names event.Names
}

// Event decodes the message; problem says why it is no event, or one that does
// not agree with its subject; "" if all is well.
func (m Message) Event() (e event.Event, problem string) {
	e, err := event.Decode(m.Header, m.Data)
	if err == nil {
		err = m.names.CheckSubject(m.Subject, e)
	}
	if err != nil {
		return event.Event{}, err.Error()
	}
	return e, ""
}

// ErrStop is returned by a visit function to end reading without an error.
var ErrStop = errors.New("follow: stop")

const (
	// idle is how long nothing may arrive before the server is asked whether there
	// is anything left: what was counted in the beginning may have been removed.
	idle = 5 * time.Second
	// heartbeat is how often the server shows that the ordered consumer is there.
	// The client misses it after two, within one wait of idle, and makes another:
	// the server that had the consumer may be gone.
	heartbeat = time.Second
	// forgotten is when the server forgets the consumer of a reader that has died.
	forgotten = time.Minute
	// cleanUp bounds what is done after the end.
	cleanUp = time.Second
)

// Read calls visit for each chosen message, oldest first, each once, on the
// caller's goroutine. It returns nil after [ErrStop] or, with NoFollow, at the
// end; an error of visit as it is; and ctx's error when ctx ends. It keeps one
// message at a time. Its errors match [bus.ErrNoStream] when the event stream
// does not exist. While it follows, it survives reconnects.
func Read(ctx context.Context, b *bus.Bus, o Options, visit func(Message) error) error {
	err := read(ctx, b, o, visit)
	switch {
	case errors.Is(err, ErrStop):
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: stream %s does not exist", bus.ErrNoStream, o.stream(b))
	default:
		return err
	}
}

func read(ctx context.Context, b *bus.Bus, o Options, visit func(Message) error) (err error) {
	name := o.stream(b)
	stream, err := b.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	last := stream.CachedInfo().State.LastSeq
	var cons jetstream.Consumer
	err = b.Ask(ctx, "CONSUMER.CREATE."+name, func(ctx context.Context) (err error) {
		cons, err = stream.OrderedConsumer(ctx, o.consumer(b, last+1))
		return err
	})
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	defer forget(ctx, b, cons)
	if o.NoFollow && cons.CachedInfo().NumPending == 0 {
		return nil
	}
	ctx, end := b.Guard(ctx, "CONSUMER.MSG.NEXT."+name)
	defer func() { err = end(err) }()
	messages, err := cons.Messages(jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return fmt.Errorf("follow: %w", err)
	}
	defer messages.Stop()
	var seen uint64
	for {
		m, err := next(ctx, messages, o.NoFollow)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			info, err := cons.Info(ctx)
			if errors.Is(err, jetstream.ErrConsumerNotFound) { // it will be missed
				continue
			}
			if err != nil {
				return fmt.Errorf("follow: %w", err)
			}
			if info.NumPending == 0 && info.Delivered.Stream <= seen { // all has arrived, too
				return nil
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		if o.NoFollow && meta.Sequence.Stream > last {
			return nil
		}
		seen = meta.Sequence.Stream
		err = visit(Message{
			Subject: m.Subject(), Sequence: meta.Sequence.Stream, Time: meta.Timestamp,
			Header: m.Headers(), Data: m.Data(), names: b.Names(),
		})
		if err != nil {
			return err
		}
		if o.NoFollow && meta.NumPending == 0 {
			return nil
		}
	}
}

// forget makes the server forget what has been read through: consumers that stay
// are counted against what a stream or an account may have, and who reads in a
// loop is soon refused another.
func forget(ctx context.Context, b *bus.Bus, cons jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	info := cons.CachedInfo()
	err := b.Ask(ctx, "CONSUMER.DELETE."+info.Stream+"."+info.Name, func(ctx context.Context) error {
		return b.JetStream().DeleteConsumer(ctx, info.Stream, info.Name)
	})
	if err != nil {
		return // the server forgets it after forgotten
	}
}

// next waits for a message; a bounded wait ends with context.DeadlineExceeded.
func next(ctx context.Context, messages jetstream.MessagesContext, bounded bool) (jetstream.Msg, error) {
	if bounded {
		limited, cancel := context.WithTimeout(ctx, idle)
		defer cancel()
		ctx = limited
	}
	return messages.Next(jetstream.NextContext(ctx))
}

// stream is the name of the stream to read.
func (o Options) stream(b *bus.Bus) string { return cmp.Or(o.Stream, b.Names().EventsStream()) }

// consumer configures one that begins as told, at start unless told otherwise.
func (o Options) consumer(b *bus.Bus, start uint64) jetstream.OrderedConsumerConfig {
	cfg := jetstream.OrderedConsumerConfig{
		NamePrefix:        "follow-" + rand.Text(),
		FilterSubjects:    o.Filters,
		InactiveThreshold: forgotten,
		// Not "new": a consumer that was lost before its first message is made anew,
		// and would miss what came between.
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   start,
	}
	if len(cfg.FilterSubjects) == 0 {
		cfg.FilterSubjects = []string{b.Names().EventsFilter()}
	}
	switch {
	case o.FromStart:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverAllPolicy, 0
	case !o.Since.IsZero():
		cfg.DeliverPolicy, cfg.OptStartSeq, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &o.Since
	}
	return cfg
}
