package durable

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// droppedKey begins the keys of a durable's metadata that say up to which
// sequence a person has dropped the events of a subject, as in
// "farandole-dropped events.order.placed.v1.>": "4711".
const droppedKey = "farandole-dropped "

// droppedOf reads them.
func droppedOf(metadata map[string]string) map[string]uint64 {
	dropped := map[string]uint64{}
	for key, value := range metadata {
		subject, ok := strings.CutPrefix(key, droppedKey)
		sequence, err := strconv.ParseUint(value, 10, 64)
		if ok && err == nil {
			dropped[subject] = sequence
		}
	}
	return dropped
}

// Dropped reports whether a person has dropped the event that is stored at a
// subject and sequence ([Narrowing.Apply]), as far as the last bind knew.
func (d *Durable) Dropped(subject string, sequence uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for filter, last := range d.dropped {
		if sequence <= last && event.SubjectCovers(filter, subject) {
			return true
		}
	}
	return false
}

// Narrowing is a durable, and the subjects that are to be taken out of it.
type Narrowing struct {
	bus      *bus.Bus
	stream   string
	subjects []string
	durable  *jetstream.ConsumerInfo
	catchUp  *jetstream.ConsumerInfo // nil if there is none
}

// Narrow looks at the durable of a consumer, and changes nothing. Errors match
// [ErrNone]; [ErrConfig] when it lacks one of the subjects, or would have none
// left; or are those of [bus.Bus.Ask].
func Narrow(ctx context.Context, b *bus.Bus, c event.Consumer, stream string, subjects []string) (*Narrowing, error) {
	n := &Narrowing{bus: b, stream: stream, subjects: slices.Clone(subjects)}
	var err error
	if n.durable, err = Look(ctx, b, stream, string(c)); err != nil {
		return nil, fmt.Errorf("consumer: drop: %w", err)
	}
	if n.durable == nil {
		return nil, fmt.Errorf("%w %s on stream %s", ErrNone, c, stream)
	}
	have := filtersOf(n.durable.Config)
	for i, subject := range subjects {
		if old, ok := former(b, stream, subject); ok && slices.Contains(have, old) {
			n.subjects[i] = old
		} else if !slices.Contains(have, subject) {
			return nil, fmt.Errorf("%w: drop: durable %s does not have %s but %v", ErrConfig, c, subject, have)
		}
	}
	if len(n.without(have)) == 0 {
		return nil, fmt.Errorf("%w: drop: durable %s would have no subject left, and take the whole stream: remove it with `nats consumer rm %s %s`",
			ErrConfig, c, stream, c)
	}
	if n.catchUp, err = Look(ctx, b, stream, catchUpName(string(c))); err != nil {
		return nil, fmt.Errorf("consumer: drop: %w", err)
	}
	return n, nil
}

// Pending counts the events of each subject that are stored and not known to have
// taken effect, in the order of the subjects.
func (n *Narrowing) Pending(ctx context.Context) ([]uint64, error) {
	counts := make([]uint64, len(n.subjects))
	for i, subject := range n.subjects {
		from := n.durable.AckFloor.Stream
		if n.catchUp != nil && slices.Contains(filtersOf(n.catchUp.Config), subject) {
			from = min(from, n.catchUp.AckFloor.Stream)
		}
		pending, err := CountPending(ctx, n.bus, n.stream, jetstream.ConsumerConfig{
			FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from + 1,
		})
		if err != nil {
			return nil, fmt.Errorf("consumer: drop: count %s: %w", subject, err)
		}
		counts[i] = pending
	}
	return counts, nil
}

// Apply takes the subjects out, and has the durable say up to which event. After
// an error it may have done so for the consumer's durable, and not for its catch-up.
func (n *Narrowing) Apply(ctx context.Context) error {
	err := n.apply(ctx)
	if err != nil {
		return fmt.Errorf("consumer: drop: %w", err)
	}
	return nil
}

func (n *Narrowing) apply(ctx context.Context) error {
	stream, err := n.bus.Stream(ctx, n.stream)
	if err != nil {
		return err
	}
	cfg := n.narrowed(n.durable.Config)
	// Replicas read here for which events they need not look for a handler any more.
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	for _, subject := range n.subjects {
		cfg.Metadata[droppedKey+subject] = strconv.FormatUint(stream.CachedInfo().State.LastSeq, 10)
	}
	if err := update(ctx, n.bus, n.stream, cfg); err != nil || n.catchUp == nil {
		return err
	}
	cfg = n.narrowed(n.catchUp.Config)
	if len(cfg.FilterSubjects) > 0 {
		return update(ctx, n.bus, n.stream, cfg)
	}
	return Remove(ctx, n.bus, n.stream, cfg.Durable)
}

func (n *Narrowing) narrowed(cfg jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	cfg.FilterSubject, cfg.FilterSubjects = "", n.without(filtersOf(cfg))
	return cfg
}

func (n *Narrowing) without(filters []string) []string {
	return slices.DeleteFunc(slices.Clone(filters), func(f string) bool { return slices.Contains(n.subjects, f) })
}
