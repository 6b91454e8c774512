package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
)

// surveyed is what the server tells of consumers with few questions.
type surveyed struct {
	bus       *bus.Bus
	count     int // partitions of the system
	durables  map[event.Consumer][]*jetstream.ConsumerInfo
	paged     map[event.Consumer]bool // has pages
	deferred  map[event.Consumer]int
	pauses    *pauses.Store
	processes map[event.Consumer]int // that follow its pauses
	unseen    error                  // why it is not known which processes do
}

// survey asks about one consumer, or about all for "".
func survey(ctx context.Context, b *bus.Bus, c event.Consumer) (*surveyed, error) {
	stream, err := b.Stream(ctx, b.Names().EventsStream())
	if err != nil {
		return nil, err
	}
	s := &surveyed{
		bus: b, pauses: pauses.New(b), count: bus.Partitions(stream.CachedInfo().Config), durables: map[event.Consumer][]*jetstream.ConsumerInfo{},
		paged: map[event.Consumer]bool{}, deferred: map[event.Consumer]int{},
	}
	return s, errors.Join(s.readDurables(ctx, stream), s.readPaged(ctx, stream, c), s.readDeferred(ctx, c), s.readProcesses(ctx))
}

// readProcesses counts the processes of the consumers. Each follows the pauses of its
// consumer, also while it is paused and asks for no events. A system that has no bucket of
// pauses yet, and a user who may not ask, get none.
func (s *surveyed) readProcesses(ctx context.Context) (err error) {
	s.processes, err = s.pauses.Followers(ctx)
	if errors.Is(err, bus.ErrNoStream) || errors.Is(err, bus.ErrDenied) {
		s.unseen, err = err, nil
	}
	return err
}

func (s *surveyed) readDurables(ctx context.Context, stream jetstream.Stream) error {
	return s.bus.Ask(ctx, "CONSUMER.LIST."+stream.CachedInfo().Config.Name, func(ctx context.Context) error {
		list := stream.ListConsumers(ctx)
		for d := range list.Info() {
			if c := s.consumerOf(d.Config); c != "" {
				s.durables[c] = append(s.durables[c], d)
			}
		}
		return list.Err()
	})
}

// consumerOf says whose durable it is, "" if it is none of Farandole's: all of a
// consumer's durables take its redrives, but for the one that catches up.
func (s *surveyed) consumerOf(cfg jetstream.ConsumerConfig) event.Consumer {
	if cfg.Durable == "" {
		return ""
	}
	for _, filter := range filtersOf(cfg) {
		if rest, ok := strings.CutPrefix(filter, s.bus.Names().Root("redrive.")); ok {
			c, _, _ := strings.Cut(rest, ".")
			return event.Consumer(c)
		}
	}
	return durable.CatchesUpFor(cfg.Durable)
}

func filtersOf(cfg jetstream.ConsumerConfig) []string {
	if cfg.FilterSubject != "" {
		return []string{cfg.FilterSubject}
	}
	return cfg.FilterSubjects
}

// isDurableOf reports whether a durable is that of one member: payment-4hq2xkz7ma-3.
func isDurableOf(name string, c event.Consumer, member string) bool {
	return strings.HasPrefix(name, string(c)+"-"+member+"-")
}

// ledgerFilter selects messages of the ledger, of all consumers for "".
func (s *surveyed) ledgerFilter(c event.Consumer, rest string) string {
	if c == "" {
		c = "*"
	}
	return s.bus.Names().Root("ledger." + string(c) + "." + rest)
}

// ledgerTokens takes apart the subject of what the ledger keeps of a partition:
// ledger.payment.17.page is payment, 17 and page.
func (s *surveyed) ledgerTokens(subject string) (c event.Consumer, partition int, rest string, ok bool) {
	tokens := strings.Split(strings.TrimPrefix(subject, s.bus.Names().Root("ledger.")), ".")
	if len(tokens) != 3 {
		return "", 0, "", false
	}
	partition, err := strconv.Atoi(tokens[1])
	return event.Consumer(tokens[0]), partition, tokens[2], err == nil
}

func (s *surveyed) readPaged(ctx context.Context, stream jetstream.Stream, c event.Consumer) error {
	subjects, err := s.subjects(ctx, stream, s.ledgerFilter(c, "*.page"))
	for _, subject := range subjects {
		if c, _, _, ok := s.ledgerTokens(subject); ok {
			s.paged[c] = true
		}
	}
	return err
}

// subjects are those of a stream that a filter selects.
func (s *surveyed) subjects(ctx context.Context, stream jetstream.Stream, filter string) (subjects []string, err error) {
	err = s.bus.Ask(ctx, "STREAM.INFO."+stream.CachedInfo().Config.Name, func(ctx context.Context) error {
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err == nil {
			subjects = slices.Collect(maps.Keys(info.State.Subjects))
		}
		return err
	})
	return subjects, err
}

func (s *surveyed) readDeferred(ctx context.Context, c event.Consumer) error {
	stream, err := s.bus.Stream(ctx, s.bus.Names().TimersStream())
	if errors.Is(err, bus.ErrNoStream) {
		return nil // then there are no timers
	}
	if err != nil {
		return err
	}
	subjects, err := s.subjects(ctx, stream, s.bus.Names().TimersFilter(c, dlq.TimerRetry))
	for _, subject := range subjects {
		c, _, _ := strings.Cut(strings.TrimPrefix(subject, s.bus.Names().Root("timer.")), ".")
		s.deferred[event.Consumer(c)]++
	}
	return err
}

// paused tells what holds a consumer up. A system that has no bucket of pauses yet, and
// a user who may not read it, get none.
func (s *surveyed) paused(ctx context.Context, c event.Consumer) (all []PausedStatus, err error) {
	d, err := s.pauses.Get(ctx, c)
	if errors.Is(err, bus.ErrNoStream) || errors.Is(err, bus.ErrDenied) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if p := d.Pause; p != nil {
		now, err := s.pauses.Now(ctx)
		if err != nil {
			return nil, err
		}
		if p.Until.After(now) {
			all = append(all, PausedStatus{Reason: byOperator, Until: p.Until, By: p.By, Why: p.Why})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Breakers)) {
		if b := d.Breakers[name]; b.State != pauses.Closed {
			all = append(all, PausedStatus{Reason: "breaker " + name, Until: b.Until, By: b.By, Why: b.Why})
		}
	}
	return all, nil
}

// partitions tells where a consumer's partitions stand.
func (s *surveyed) partitions(ctx context.Context, c event.Consumer, live []Member) ([]PartitionStatus, error) {
	ledger, err := dedup.NewPartitions(s.bus, dedup.PartitionsConfig{})
	if err != nil {
		return nil, err
	}
	heads, err := ledger.Heads(ctx, c)
	if err != nil {
		return nil, err
	}
	retries, err := s.retries(ctx, c)
	if err != nil {
		return nil, err
	}
	taken := s.taken(c)
	all := make([]PartitionStatus, s.count)
	for n := range all {
		h := heads[n]
		h.Partition = n
		p := PartitionStatus{Partition: n, Owner: h.Owner, Floor: h.Floor, Page: h.Page, At: h.At.UTC(), Retries: retries[n]}
		p.Owned = !h.Farewell && slices.ContainsFunc(live, func(m Member) bool { return m.ID == h.Owner })
		behind := s.behind(c, h, taken)
		if p.Lag, err = s.lag(ctx, behind); err == nil && p.Lag > 0 {
			p.Oldest, err = s.oldest(ctx, behind)
		}
		if err != nil {
			return nil, err
		}
		all[n] = p
	}
	return all, nil
}

// taken are the event types that a consumer's durables take now.
func (s *surveyed) taken(c event.Consumer) map[event.Type]bool {
	types := map[event.Type]bool{}
	for _, d := range s.durables[c] {
		for _, filter := range filtersOf(d.Config) {
			rest, ok := strings.CutPrefix(filter, s.bus.Names().Root("events."))
			if tokens := strings.Split(rest, "."); ok && len(tokens) > 3 {
				types[event.Type(strings.Join(tokens[:3], "."))] = true
			}
		}
	}
	return types
}

// behind are the filters of what a partition is given, by the sequence after which
// it has not ended. Types that are behind the floor count if somebody takes them: else
// they were handled by a version of the consumer that is gone.
func (s *surveyed) behind(c event.Consumer, h dedup.Head, taken map[event.Type]bool) map[uint64][]string {
	names := s.bus.Names()
	after := map[uint64][]string{h.Floor: {names.RedrivePartitionFilter(c, h.Partition)}}
	for t, at := range h.Types {
		if at == h.Floor || taken[t] {
			after[at] = append(after[at], names.TypePartitionFilter(t, h.Partition))
		}
	}
	for t := range taken {
		if _, told := h.Types[t]; !told { // it is new
			after[0] = append(after[0], names.TypePartitionFilter(t, h.Partition))
		}
	}
	return after
}

// lag counts the events that are stored after those that have ended.
func (s *surveyed) lag(ctx context.Context, behind map[uint64][]string) (lag uint64, err error) {
	for at, filters := range behind {
		n, err := durable.CountPending(ctx, s.bus, s.bus.Names().EventsStream(), jetstream.ConsumerConfig{
			FilterSubjects: filters, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: at + 1,
		})
		if err != nil {
			return 0, err
		}
		lag += n
	}
	return lag, nil
}

// retries counts the events of each partition that have failed and come again: their
// records say that they wait.
func (s *surveyed) retries(ctx context.Context, c event.Consumer) (map[int]int, error) {
	counts := map[int]int{}
	err := s.bus.Scan(ctx, s.bus.Names().EventsStream(), s.ledgerFilter(c, "*.*"), func(subject string, _ uint64, data []byte) error {
		_, partition, rest, ok := s.ledgerTokens(subject)
		if !ok || rest == "page" {
			return nil
		}
		var record struct {
			State string `json:"state"`
		}
		if err := json.Unmarshal(data, &record); err != nil {
			return fmt.Errorf("%s: %w", subject, err)
		}
		if record.State == "waiting" {
			counts[partition]++
		}
		return nil
	})
	return counts, err
}
