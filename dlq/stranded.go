package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
)

// Stranded counts events that wait for one consumer only, and that consumer
// has no durable: it was renamed or removed. They have no letters: letters that are
// being replayed are not counted. A consumer that is started under the name takes them.
type Stranded struct {
	Consumer event.Consumer `json:"consumer"`
	// Deferred are retries whose time has not come yet.
	Deferred int `json:"deferred"`
	// Arrived are retries whose time has come, and replays of a version that removed the letter.
	Arrived int `json:"arrived"`
	// Unknown have arrived as well, but the ledger has no mark of them (any
	// more): nothing tells whether they were handled before.
	Unknown int `json:"unknown"`
}

// requireConsumer returns nil when the letter's consumer would get its replay. The
// error matches [ErrNoConsumer] when it would not.
func (s *Stream) requireConsumer(ctx context.Context, l *letter, partitions int) error {
	taken, err := s.durableTakes(ctx, l.entry.Consumer, redriveSubject(s.names, l, partitions))
	if err == nil && !taken {
		err = fmt.Errorf("%w %s exists on stream %s: start it, or --force stores the redrive for whoever comes",
			ErrNoConsumer, l.entry.Consumer, s.names.EventsStream())
	}
	return err
}

func statusOf(err error) Status {
	if errors.Is(err, ErrNoConsumer) {
		return NoConsumer
	}
	return Failed
}

// durableTakes reports whether the durable of a consumer gets what is stored on subject.
// A consumer that shares its events by partition has none for long: whoever owns the
// partition gets it. Its pages tell that there is such a consumer.
func (s *Stream) durableTakes(ctx context.Context, c event.Consumer, subject string) (bool, error) {
	if c.Validate() != nil { // a letter of another tool
		return false, nil //nolint:nilerr // no durable has such a name
	}
	var durable jetstream.Consumer
	err := s.bus.Ask(ctx, "CONSUMER.INFO."+s.names.EventsStream()+"."+string(c), func(ctx context.Context) (err error) {
		durable, err = s.bus.JetStream().Consumer(ctx, s.names.EventsStream(), string(c))
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return s.hasPages(ctx, c)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return false, fmt.Errorf("dlq: look for consumer %s: %w: stream %s does not exist", c, bus.ErrNoStream, s.names.EventsStream())
	case err != nil:
		return false, s.wrap("look for consumer "+string(c), err)
	}
	cfg := durable.CachedInfo().Config
	if cfg.FilterSubject != "" {
		cfg.FilterSubjects = append(cfg.FilterSubjects, cfg.FilterSubject)
	}
	return len(cfg.FilterSubjects) == 0 || slices.ContainsFunc(cfg.FilterSubjects, func(filter string) bool {
		return event.SubjectCovers(filter, subject)
	}), nil
}

// hasPages reports whether a consumer has ever owned a partition.
func (s *Stream) hasPages(ctx context.Context, c event.Consumer) (bool, error) {
	stream, err := s.bus.Stream(ctx, s.names.EventsStream())
	if err != nil {
		return false, s.wrap("look for consumer "+string(c), err)
	}
	info, err := s.subjects(ctx, stream, s.names.Root("ledger."+string(c)+".*.page"))
	if err != nil {
		return false, s.wrap("look for consumer "+string(c), err)
	}
	return len(info.State.Subjects) > 0, nil
}

// stranded finds what waits for consumers that have no durable, but for the events of
// these letters. It learns the subjects of all redrives, and reads those of such consumers.
func (s *Stream) stranded(ctx context.Context, letters map[string]bool) ([]Stranded, error) {
	arrived, err := s.countByConsumer(ctx, s.names.EventsStream(), s.names.RedriveFilter(""), nil)
	if err != nil {
		return nil, err
	}
	deferred, err := s.countByConsumer(ctx, s.names.TimersStream(), s.names.TimersFilter("", TimerRetry), letters)
	if err != nil {
		return nil, err
	}
	found := map[event.Consumer]*Stranded{}
	for _, counts := range []map[event.Consumer]int{arrived, deferred} {
		for c := range counts {
			taken, err := s.durableTakes(ctx, c, s.names.RedriveFilter(c))
			if err != nil && !errors.Is(err, bus.ErrNoStream) { // no stream, no durable
				return nil, err
			}
			if !taken {
				found[c] = &Stranded{Consumer: c, Deferred: deferred[c]}
			}
		}
	}
	var stranded []Stranded
	for c, w := range found {
		if arrived[c] > 0 {
			if err := s.countArrived(ctx, w, letters); err != nil {
				return nil, err
			}
		}
		if w.Deferred+w.Arrived+w.Unknown > 0 {
			stranded = append(stranded, *w)
		}
	}
	slices.SortFunc(stranded, func(a, b Stranded) int { return cmp.Compare(a.Consumer, b.Consumer) })
	return stranded, nil
}

// countByConsumer counts the messages of a stream that a filter of redrives
// or timers selects. Their second token, after the system's prefix, is the consumer;
// the last one of a retry's timer is the event key, by which those of letters are left out.
func (s *Stream) countByConsumer(ctx context.Context, name, filter string, letters map[string]bool) (map[event.Consumer]int, error) {
	counts := map[event.Consumer]int{}
	stream, err := s.bus.Stream(ctx, name)
	if errors.Is(err, bus.ErrNoStream) {
		return counts, nil
	}
	if err != nil {
		return nil, s.wrap("look for redrives", err)
	}
	info, err := s.subjects(ctx, stream, filter)
	if err != nil {
		return nil, s.wrap("look for redrives", err)
	}
	consumer := strings.Count(s.names.Root("redrive.*"), ".")
	for subject, n := range info.State.Subjects {
		tokens := strings.Split(subject, ".")
		if c := event.Consumer(tokens[consumer]); !letters[entryID(c, event.EventKey(tokens[len(tokens)-1]))] {
			counts[c] += int(n) //nolint:gosec // a count
		}
	}
	return counts, nil
}

// countArrived asks the ledger what became of a consumer's redrives.
func (s *Stream) countArrived(ctx context.Context, w *Stranded, letters map[string]bool) error {
	o := follow.Options{Filters: []string{s.names.RedriveFilter(w.Consumer)}, FromStart: true, NoFollow: true}
	return follow.Read(ctx, s.bus, o, func(m follow.Message) error {
		redrive, ok := RedriveOf(m.Header)
		if !ok {
			return nil
		}
		if e, err := event.Decode(m.Header, m.Data); redrive.Key == "" && err == nil {
			redrive.Key = event.EventKeyOf(e)
		}
		if letters[entryID(w.Consumer, redrive.Key)] {
			return nil
		}
		mark, known, err := s.mark(ctx, w.Consumer, redrive.Key)
		switch {
		case err != nil:
			return err
		case !known:
			w.Unknown++
		case mark.underWay(), mark.State == StateParked && mark.Replay < redrive.Replay:
			w.Arrived++
		}
		return nil
	})
}
