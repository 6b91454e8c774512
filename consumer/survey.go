package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// surveyed is what the server tells of consumers with few questions.
type surveyed struct {
	bus      *bus.Bus
	count    int // partitions of the system
	durables map[event.Consumer][]*jetstream.ConsumerInfo
	heads    map[event.Consumer]map[int]head
	deferred map[event.Consumer]int
}

// head is the last page of a partition.
type head struct {
	owner, kind string
	floor       uint64
	at          time.Time
}

// Headers of a page, see docs/contract.md.
const (
	pageKindHeader  = "Farandole-Page"
	pageOwnerHeader = "Farandole-Owner"
	pageFloorHeader = "Farandole-Floor"
	farewell        = "farewell"
)

// survey asks about one consumer, or about all for "".
func survey(ctx context.Context, b *bus.Bus, c event.Consumer) (*surveyed, error) {
	stream, err := b.Stream(ctx, b.Names().EventsStream())
	if err != nil {
		return nil, err
	}
	s := &surveyed{
		bus: b, count: bus.Partitions(stream.CachedInfo().Config), durables: map[event.Consumer][]*jetstream.ConsumerInfo{},
		heads: map[event.Consumer]map[int]head{}, deferred: map[event.Consumer]int{},
	}
	return s, errors.Join(s.readDurables(ctx, stream), s.readHeads(ctx, c), s.readDeferred(ctx, c))
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

func (s *surveyed) readHeads(ctx context.Context, c event.Consumer) error {
	cfg := bus.ScanConfig{Filter: s.ledgerFilter(c, "*.page"), HeadersOnly: true}
	return s.bus.ScanMessages(ctx, s.bus.Names().EventsStream(), cfg, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		c, partition, _, ok := s.ledgerTokens(m.Subject())
		if !ok {
			return true, nil
		}
		h := m.Headers()
		floor, err := strconv.ParseUint(h.Get(pageFloorHeader), 10, 64)
		if err != nil {
			return false, fmt.Errorf("page %s at sequence %d: %s is %q", m.Subject(), meta.Sequence.Stream, pageFloorHeader, h.Get(pageFloorHeader))
		}
		if s.heads[c] == nil {
			s.heads[c] = map[int]head{}
		}
		s.heads[c][partition] = head{owner: h.Get(pageOwnerHeader), kind: h.Get(pageKindHeader), floor: floor, at: meta.Timestamp.UTC()}
		return true, nil
	})
}

func (s *surveyed) readDeferred(ctx context.Context, c event.Consumer) error {
	stream, err := s.bus.Stream(ctx, s.bus.Names().TimersStream())
	if errors.Is(err, bus.ErrNoStream) {
		return nil // then there are no timers
	}
	if err != nil {
		return err
	}
	filter := s.bus.Names().TimersFilter(c, dlq.TimerRetry)
	var info *jetstream.StreamInfo
	err = s.bus.Ask(ctx, "STREAM.INFO."+stream.CachedInfo().Config.Name, func(ctx context.Context) (err error) {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(filter))
		return err
	})
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		c, _, _ := strings.Cut(strings.TrimPrefix(subject, s.bus.Names().Root("timer.")), ".")
		s.deferred[event.Consumer(c)]++
	}
	return nil
}

// partitions tells where a consumer's partitions stand.
func (s *surveyed) partitions(ctx context.Context, c event.Consumer, live []Member) ([]PartitionStatus, error) {
	types, err := s.types(ctx, c)
	if err != nil {
		return nil, err
	}
	retries, err := s.retries(ctx, c)
	if err != nil {
		return nil, err
	}
	all := make([]PartitionStatus, s.count)
	for n := range all {
		h := s.heads[c][n]
		p := PartitionStatus{Partition: n, Owner: h.owner, Floor: h.floor, Page: h.kind, At: h.at, Retries: retries[n]}
		p.Owned = h.kind != farewell && slices.ContainsFunc(live, func(m Member) bool { return m.ID == h.owner })
		filters := []string{s.bus.Names().RedrivePartitionFilter(c, n)}
		for _, t := range types {
			filters = append(filters, s.bus.Names().TypePartitionFilter(t, n))
		}
		p.Lag, err = durable.CountPending(ctx, s.bus, s.bus.Names().EventsStream(), jetstream.ConsumerConfig{
			FilterSubjects: filters, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: h.floor + 1,
		})
		if err != nil {
			return nil, err
		}
		all[n] = p
	}
	return all, nil
}

// types are the event types of a consumer: those that its ledger remembers, and
// those that its durables take now.
func (s *surveyed) types(ctx context.Context, c event.Consumer) (types []event.Type, err error) {
	names := s.bus.Names()
	var filters []string
	m, err := s.bus.Latest(ctx, names.EventsStream(), s.ledgerFilter(c, "durable"))
	if err != nil {
		return nil, err
	}
	if m != nil {
		var given struct {
			Subjects []string `json:"subjects"` // each after its stream's name
		}
		if err := json.Unmarshal(m.Data, &given); err != nil {
			return nil, fmt.Errorf("%s at sequence %d: %w", m.Subject, m.Sequence, err)
		}
		for _, subject := range given.Subjects {
			if filter, ok := strings.CutPrefix(subject, names.EventsStream()+" "); ok {
				filters = append(filters, filter)
			}
		}
	}
	for _, d := range s.durables[c] {
		filters = append(filters, filtersOf(d.Config)...)
	}
	for _, filter := range filters {
		rest, ok := strings.CutPrefix(filter, names.Root("events."))
		if tokens := strings.Split(rest, "."); ok && len(tokens) > 3 {
			if t := event.Type(strings.Join(tokens[:3], ".")); t.Validate() == nil {
				types = append(types, t)
			}
		}
	}
	slices.Sort(types)
	return slices.Compact(types), nil
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
