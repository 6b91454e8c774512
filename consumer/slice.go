package consumer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/event"
)

// slice is what one feed reads of the event stream: the partitions that were taken
// at once. Its durable is this process's alone, and is made anew whenever a message
// got lost or the slice has become smaller.
type slice struct {
	consumer   *Consumer
	owner      string // this process's id, which makes the durable's name its own
	count      int    // partitions of the system
	partitions map[int]*partition

	// behind is set for a slice that catches up: of each partition the types that are
	// behind its floor, and where they are; and its floor.
	behind map[int]map[event.Type]uint64
	floors map[int]uint64

	broken chan struct{} // asks for another durable

	mu     sync.Mutex
	next   uint64   // all messages before it were delivered, or have ended
	heard  uint64   // by the present durable
	told   uint64   // by its last heartbeat: how many messages it has sent
	handed []handed // delivered and not told to the server, oldest first
	caught bool     // a slice that catches up has delivered all there was
}

// handed is a message that was delivered.
type handed struct {
	sequence  uint64
	partition *partition // nil for one that was not to be handled
	reply     string
}

func newSlice(c *Consumer, owner string, count int, partitions map[int]*partition) *slice {
	s := &slice{consumer: c, owner: owner, count: count, partitions: partitions, broken: make(chan struct{}, 1)}
	first := true
	for _, p := range partitions {
		if floor := p.tenure.Floor(); first || floor+1 < s.next {
			s.next, first = floor+1, false
		}
	}
	return s
}

// newCatchUp returns the slice of what is behind the floors of partitions; nil if
// nothing is.
func newCatchUp(c *Consumer, owner string, count int, partitions map[int]*partition) *slice {
	s := &slice{
		consumer: c, owner: owner, count: count, partitions: map[int]*partition{},
		behind: map[int]map[event.Type]uint64{}, floors: map[int]uint64{}, broken: make(chan struct{}, 1),
	}
	for n, p := range partitions {
		behind := p.tenure.Behind()
		if len(behind) == 0 {
			continue
		}
		s.partitions[n], s.behind[n], s.floors[n] = p, behind, p.tenure.Floor()
		for _, at := range behind {
			if s.next == 0 || at+1 < s.next {
				s.next = at + 1
			}
		}
	}
	if len(s.partitions) == 0 {
		return nil
	}
	return s
}

// first is where a durable begins: with the first message that has not ended. Those
// that this process holds come again and are not handled again: so the server shows
// them, too, until they end.
func (s *slice) first() uint64 {
	if s.behind != nil {
		return s.next
	}
	first := s.next
	for _, p := range s.partitions {
		if !p.closed() {
			first = min(first, p.tenure.Floor()+1)
		}
	}
	return first
}

// live are the partitions of the slice that this process still owns.
func (s *slice) live() (live []int) {
	for n, p := range s.partitions {
		if !p.closed() {
			live = append(live, n)
		}
	}
	slices.Sort(live)
	return live
}

// breakOff asks for another durable.
func (s *slice) breakOff() {
	select {
	case s.broken <- struct{}{}:
	default:
	}
}

const (
	// sliceIdle is when the server forgets the durable of a process that has died.
	sliceIdle = time.Minute
	// sliceAckWait is far longer than anything runs: nothing is delivered twice.
	sliceAckWait = 24 * time.Hour
)

// bind makes a durable that begins with what was not delivered yet, and returns its
// name. The one before is removed.
func (s *slice) bind(ctx context.Context, before string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
	defer cancel()
	b, stream := s.consumer.bus, s.consumer.bus.Names().EventsStream()
	s.remove(ctx, before)
	if err := s.consumer.review(ctx, s.owner, s.partitions); err != nil {
		return before, fmt.Errorf("consumer: %s: %w", s.consumer.cfg.Name, err)
	}
	s.mu.Lock()
	name := fmt.Sprintf("%s-%s-%d", s.consumer.cfg.Name, s.owner, s.consumer.durables.Add(1))
	from := s.first()
	s.heard, s.told, s.handed = 0, 0, nil
	s.mu.Unlock()
	err := b.Ask(ctx, "CONSUMER.CREATE."+stream+"."+name, func(ctx context.Context) error {
		made, err := b.JetStream().CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
			Durable:           name,
			Description:       fmt.Sprintf("partitions of %s", s.consumer.cfg.Name),
			FilterSubjects:    s.filters(),
			DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
			OptStartSeq:       max(from, 1),
			AckPolicy:         jetstream.AckAllPolicy,
			AckWait:           sliceAckWait,
			MaxAckPending:     -1,
			InactiveThreshold: sliceIdle,
		})
		if err == nil && made.CachedInfo().NumPending == 0 {
			s.mu.Lock()
			s.caught = true
			s.mu.Unlock()
		}
		return err
	})
	if err != nil {
		return before, fmt.Errorf("consumer: %s: durable on stream %s: %w", s.consumer.cfg.Name, stream, err)
	}
	return name, nil
}

func (s *slice) remove(ctx context.Context, name string) {
	if name == "" {
		return
	}
	b, stream := s.consumer.bus, s.consumer.bus.Names().EventsStream()
	err := b.Ask(ctx, "CONSUMER.DELETE."+stream+"."+name, func(ctx context.Context) error {
		return b.JetStream().DeleteConsumer(ctx, stream, name)
	})
	if err != nil {
		s.consumer.log.Debug().Err(err).Str("durable", name).Msg("durable not removed, the server forgets it")
	}
}

// filters are the subjects of the slice. What was stored before the stream put
// partitions into subjects has none, and everybody reads it.
func (s *slice) filters() (filters []string) {
	n, c := s.consumer.bus.Names(), s.consumer
	live := s.live()
	if s.behind != nil {
		old := map[event.Type]bool{}
		for _, p := range live {
			for t := range s.behind[p] {
				filters = append(filters, n.TypePartitionFilter(t, p))
				if !old[t] {
					old[t] = true
					filters = append(filters, n.EventSubject(t, "*"))
				}
			}
		}
		return filters
	}
	if len(live) == s.count {
		for _, t := range c.registry.types {
			filters = append(filters, n.TypeFilter(t))
		}
		return append(filters, n.RedriveFilter(c.cfg.Name))
	}
	for _, t := range c.registry.types {
		filters = append(filters, n.EventSubject(t, "*"))
		for _, p := range live {
			filters = append(filters, n.TypePartitionFilter(t, p))
		}
	}
	filters = append(filters, n.RedriveSubject(c.cfg.Name, n.Root("events.*.*.*.*")))
	for _, p := range live {
		filters = append(filters, n.RedrivePartitionFilter(c.cfg.Name, p))
	}
	return filters
}

// take admits a message, and returns its partition; nil if it is not to be handled
// here, or not again. Where one got lost before it, it is read again.
func (s *slice) take(m *nats.Msg, meta *nats.MsgMetadata) *partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if meta.Sequence.Consumer != s.heard+1 {
		s.breakOff()
		return nil
	}
	s.heard++
	s.next = max(s.next, meta.Sequence.Stream+1)
	names := s.consumer.bus.Names()
	n, ok := names.StoredPartition(names.Stored(m.Subject, s.count))
	if !ok {
		return nil
	}
	p := s.partitions[n]
	if s.behind != nil {
		s.caught = s.caught || meta.NumPending == 0
		if !s.isBehind(n, m.Subject, meta.Sequence.Stream) {
			p = nil
		}
	}
	entered := p != nil && p.enter(meta.Sequence.Stream, s.behind != nil)
	held := p
	if p != nil && !entered && !p.tenure.Holds(meta.Sequence.Stream) {
		held = nil
	}
	s.handed = append(s.handed, handed{meta.Sequence.Stream, held, m.Reply})
	if !entered {
		return nil
	}
	return p
}

// isBehind reports whether a message is one that its type was behind for.
func (s *slice) isBehind(partition int, subject string, sequence uint64) bool {
	for t, at := range s.behind[partition] {
		if root := strings.TrimSuffix(s.consumer.bus.Names().TypeFilter(t), ">"); strings.HasPrefix(subject, root) {
			return sequence > at && sequence <= s.floors[partition]
		}
	}
	return false
}

// catchUp ends a slice that catches up, when all there was has ended. It reports
// whether that is so.
func (s *slice) catchUp(ctx context.Context) bool {
	s.mu.Lock()
	caught := s.caught
	s.mu.Unlock()
	for n, p := range s.partitions {
		if p.closed() {
			continue // its next owner catches up
		}
		if !caught {
			return false
		}
		done, err := p.tenure.CatchUp(ctx)
		if err != nil {
			s.consumer.log.Warn().Err(err).Int("partition", n).Msg("types caught up, not recorded yet")
		}
		if !done {
			return false
		}
	}
	return true
}

// headerSent is how many messages the durable has sent, in the heartbeat of a pull.
const headerSent = "Nats-Last-Consumer"

// hear compares how many messages the server has sent with how many have arrived: the
// one that got lost may be the last for a while. With several replicas the server may
// count a message a moment before it sends it, so a heartbeat's count has to be
// reached by the next one.
func (s *slice) hear(status *nats.Msg) {
	sent, err := strconv.ParseUint(status.Header.Get(headerSent), 10, 64)
	if err != nil {
		return // it is no heartbeat
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told > s.heard {
		s.breakOff()
	}
	s.told = sent
}

// tell acknowledges what has ended, for those who look at the server's consumers.
// Nothing depends on it.
func (s *slice) tell() {
	s.mu.Lock()
	reply := ""
	for len(s.handed) > 0 {
		h := s.handed[0]
		if h.partition != nil && h.sequence > h.partition.tenure.Floor() && !h.partition.closed() {
			break
		}
		reply = h.reply
		s.handed = s.handed[1:]
	}
	s.mu.Unlock()
	if reply == "" {
		return
	}
	if err := s.consumer.bus.Conn().Publish(reply, []byte("+ACK")); err != nil {
		s.consumer.log.Debug().Err(err).Msg("progress not told to the server")
	}
}
