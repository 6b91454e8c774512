package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

// The storms of this file let members of one consumer come, go, die, and be cut off
// or frozen until others have their partitions: then they go on as zombies. Messages
// get lost on the way to and from them. In the end each order has been paid once, in
// the order of its key, or lies in the dead letters.

// storms is how many seeds there are, and how much befalls the members of each.
func storms() (seeds []uint64, blows int) {
	seeds, blows = []uint64{1, 2}, 3
	if long() {
		seeds, blows = []uint64{1, 2, 3, 4, 5, 6}, 10
	}
	if s := os.Getenv("FARANDOLE_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			panic("FARANDOLE_SEED: " + err.Error())
		}
		for i := range seeds {
			seeds[i] += n
		}
	}
	return seeds, blows
}

// long says that there is time for the long variants of tests.
func long() bool { return os.Getenv("FARANDOLE_LONG") == "1" }

func TestPartitions_storm(t *testing.T) {
	t.Parallel()
	seeds, blows := storms()
	var done tolled
	t.Cleanup(func() { t.Log("done: ", done.String()) })
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = partitionKind
			newStorm(s, seed, s.server).blow(blows, &done)
		})
	}
}

// TestPartitions_storm_on_a_cluster also takes its leader from the stream now and then.
func TestPartitions_storm_on_a_cluster(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("needs minutes: FARANDOLE_LONG=1")
	}
	seeds, blows := storms()
	servers := bustest.StartCluster(t, 3)
	var done tolled
	t.Cleanup(func() { t.Log("done: ", done.String()) })
	for _, seed := range seeds[:2] {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := &system{tb: t, server: servers[0], kind: partitionKind}
			s.bus = bustest.Connect(t, bus.Config{InProcess: servers[0], Names: event.Names{Prefix: bustest.Prefix()}})
			if _, err := topology.Provision(t.Context(), s.bus, topology.New(s.bus.Names(), topology.Config{Replicas: 3})); err != nil {
				t.Fatal(err)
			}
			x := newStorm(s, seed, servers[0], servers[1], servers[2])
			x.cluster = true
			x.blow(blows, &done)
		})
	}
}

const stormKeys = 48

type storm struct {
	*system
	servers []nats.InProcessConnProvider
	cluster bool // its stream has a leader that steps down now and then
	leaders int  // changed
	rng     *rand.Rand
	runs    tally
	lossy   atomic.Bool // messages get lost now and then
	live    []*member
	all     []*member
	ending  sync.WaitGroup

	mu     sync.Mutex // guards what the publisher counts
	orders [stormKeys]int64
	poison []string
}

func newStorm(s *system, seed uint64, servers ...nats.InProcessConnProvider) *storm {
	return &storm{system: s, servers: servers, rng: rand.New(rand.NewPCG(seed, 1))}
}

// member is a process with a line that can be cut, frozen and lossy.
type member struct {
	*process
	owner   atomic.Pointer[string] // its id, as its pages say
	pulled  atomic.Bool            // its start is over
	cut     atomic.Bool            // it has no line
	frozen  atomic.Pointer[chan struct{}]
	zombie  bool // it was cut off or frozen, and came back
	crashed bool
}

// line is the way of a member to its server.
type line struct {
	nats.InProcessConnProvider
	member *member
}

func (l line) InProcessConn() (net.Conn, error) {
	if l.member.cut.Load() {
		return nil, errors.New("the line is cut")
	}
	return l.InProcessConnProvider.InProcessConn()
}

// judge is the fate of a frame: a late one, too, for a frozen member has sent it.
func (s *storm) judge(m *member, frame []byte) wiretap.Verdict {
	subject := wiretap.Subject(frame)
	if strings.Contains(subject, ".CONSUMER.MSG.NEXT.") {
		m.pulled.Store(true)
	}
	if m.owner.Load() == nil {
		if _, after, ok := bytes.Cut(frame, []byte("Farandole-Owner: ")); ok && strings.HasPrefix(string(frame), "HPUB") {
			id, _, _ := strings.Cut(string(after), "\r\n")
			m.owner.Store(&id)
		}
	}
	if thaw := m.frozen.Load(); thaw != nil {
		<-*thaw
	}
	switch {
	case m.cut.Load():
		return wiretap.Break
	case s.lossy.Load() && subject != "" && m.pulled.Load() && rand.IntN(300) == 0:
		return wiretap.Drop
	}
	return wiretap.Pass
}

func (s *storm) config() consumer.Config {
	cfg := config()
	cfg.Retry.MaxAttempts, cfg.MaxCrashes, cfg.Lease = 100, 100, 10*time.Second
	cfg.HandlerTimeout, cfg.Grace = 3*time.Second, 3*time.Second
	return cfg
}

// join starts a member.
func (s *storm) join() {
	m := new(member)
	judge := func(frame []byte) wiretap.Verdict { return s.judge(m, frame) }
	doomed := *s.system
	doomed.server = line{wiretap.New(s.servers[s.rng.IntN(len(s.servers))], judge, judge), m}
	doomed.publishTimeout = time.Second
	m.process = doomed.prepare(s.config(), handling(s.handle), nil)
	m.run()
	s.live, s.all = append(s.live, m), append(s.all, m)
}

// handle pays an order. Some fail now and then, some always.
func (s *storm) handle(ctx context.Context, e event.Event) (consumer.Step, error) {
	runs := s.runs.add(e.ID())
	_, kind, _ := strings.Cut(e.ID(), " ")
	switch {
	case kind == "poison":
		return consumer.Step{}, consumer.Permanent(errFlaky)
	case kind == "flaky" && runs%3 > 0:
		return consumer.Step{}, errFlaky
	case kind == "slow":
		select {
		case <-ctx.Done():
			return consumer.Step{}, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	d := paid.New(event.PartitionKey(e), orderData{})
	d.Subject = e.ID()
	return consumer.Emit(d), nil
}

func orderKey(n int) event.Key { return event.Key(fmt.Sprint("ord-", n)) }

// publishOrders stores orders until ctx ends.
func (s *storm) publishOrders(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil {
		<-pace.C
		key := rng.IntN(stormKeys)
		n := s.orders[key]
		id := fmt.Sprintf("%d-%d", key, n)
		switch rng.IntN(60) {
		case 0:
			id += " poison"
		case 1, 2, 3:
			id += " flaky"
		case 4, 5:
			id += " slow"
		}
		d := placed.New(orderKey(key), orderData{Amount: n})
		d.ID = id
		e, err := s.bus.Seal(d)
		for err == nil {
			if _, err = s.bus.Publish(context.WithoutCancel(ctx), e); err == nil {
				break
			}
			if !bus.IsOutage(err) { // its message id keeps it from being stored twice
				break
			}
			err = nil
		}
		if err != nil {
			s.tb.Errorf("publish %s: %v", id, err)
			return
		}
		s.mu.Lock()
		s.orders[key]++
		if strings.HasSuffix(id, "poison") {
			s.poison = append(s.poison, id)
		}
		s.mu.Unlock()
	}
}

// blow lets so many things befall the members while orders come in, and checks what is
// left at the end.
func (s *storm) blow(blows int, done *tolled) {
	s.tb.Helper()
	defer s.over()
	publishing, end := context.WithCancel(s.tb.Context())
	seed := s.rng.Uint64()
	var publisher sync.WaitGroup
	publisher.Go(func() { s.publishOrders(publishing, seed) })
	defer publisher.Wait()
	defer end()
	for range 3 {
		s.join()
	}
	s.owned()
	for n := range blows {
		s.lossy.Store(s.rng.IntN(2) == 0)
		if s.cluster {
			s.stepDown()
		}
		// Each storm has all kinds; what comes first is chance.
		switch (n + int(seed%4)) % 4 {
		case 0:
			s.crash(1)
		case 1:
			s.isolate(1, false)
		case 2:
			s.isolate(1, true)
		case 3:
			s.join()
			s.leave()
		}
		for len(s.live) < 3 || s.rng.IntN(3) == 0 && len(s.live) < 5 {
			s.join()
		}
		s.owned()
	}
	s.lossy.Store(false)
	end()
	publisher.Wait()
	s.complete()
	s.count(done)
}

// over ends what a failure has left running.
func (s *storm) over() {
	for _, m := range s.all {
		if thaw := m.frozen.Swap(nil); thaw != nil {
			close(*thaw)
		}
		m.cancel()
		if s.tb.Failed() {
			m.crash()
		}
	}
	for _, m := range s.all {
		<-m.done
	}
}

// pick draws a member, and takes it out of those that live.
func (s *storm) pick() *member {
	i := s.rng.IntN(len(s.live))
	m := s.live[i]
	s.live = slices.Delete(s.live, i, i+1)
	return m
}

func (s *storm) crash(n int) {
	for range n {
		m := s.pick()
		m.crashed = true
		m.crash()
		s.end(m)
	}
}

func (s *storm) leave() { s.end(s.pick()) }

// end stops a member, and does not wait for that.
func (s *storm) end(m *member) {
	s.ending.Go(func() {
		// One that had no answer for as long as the bus waits has ended at its start, and one
		// whose messages get lost may not be done with its last steps within its grace.
		if err := m.stop(); err != nil && !m.crashed && !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, consumer.ErrAbandoned) {
			s.tb.Errorf("Run: %v", err)
		}
	})
}

// isolate cuts members off, or freezes them so that what they send comes late, until
// others have all their partitions. Then they go on.
func (s *storm) isolate(n int, freeze bool) {
	thaw := make(chan struct{})
	var zombies []*member
	for range n {
		m := s.pick()
		m.zombie = true
		if freeze {
			m.frozen.Store(&thaw)
		} else {
			m.cut.Store(true)
		}
		zombies = append(zombies, m)
	}
	s.owned()
	for _, m := range zombies {
		m.cut.Store(false)
		m.frozen.Store(nil)
	}
	close(thaw)
	s.live = append(s.live, zombies...)
}

// stepDown takes its leader from the event stream.
func (s *storm) stepDown() {
	s.leaders++
	bustest.Eventually(s.tb, soon, func() error {
		_, err := s.bus.Conn().Request(s.bus.APIPrefix()+"STREAM.LEADER.STEPDOWN."+s.bus.Names().EventsStream(), nil, time.Second)
		return err
	})
}

// owned waits until all partitions that have orders are those of members that live. Of
// the others nobody may notice that a zombie has lost them: it has nothing to commit.
func (s *storm) owned() {
	s.tb.Helper()
	bustest.Eventually(s.tb, 2*soon, func() error {
		owners := map[string]bool{}
		for _, m := range s.live {
			if id := m.owner.Load(); id != nil {
				owners[*id] = true
			}
		}
		heads, err := s.open(s.bus).Partitions().Heads(s.tb.Context(), "payment")
		if err != nil {
			return err
		}
		var left []dedup.Head
		for key := range stormKeys {
			p := event.PartitionOf(orderKey(key), event.DefaultPartitions)
			if h := heads[p]; !owners[h.Owner] || h.Farewell {
				h.Partition = p
				left = append(left, h)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("of the members %v none has %+v; live are %s", slices.Sorted(maps.Keys(owners)), left, s.lives())
		}
		return nil
	})
}

// lives tells how it is with those that live.
func (s *storm) lives() string {
	var all strings.Builder
	for _, m := range s.live {
		state := "runs"
		select {
		case <-m.done:
			state = fmt.Sprintf("ended with %v", m.err)
		default:
		}
		id := "no page"
		if owner := m.owner.Load(); owner != nil {
			id = *owner
		}
		fmt.Fprintf(&all, "[%s: %s, health: %v, pulled %v, cut %v, frozen %v, zombie %v, %+v]", id, state, m.Health(), m.pulled.Load(), m.cut.Load(), m.frozen.Load() != nil, m.zombie, m.Stats())
	}
	return all.String()
}

// complete waits until all is paid or parked, ends the members, and checks everything.
func (s *storm) complete() {
	s.tb.Helper()
	total := int64(0)
	for _, n := range s.orders {
		total += n
	}
	want := total - int64(len(s.poison))
	bustest.Eventually(s.tb, 2*soon, func() error {
		filter := s.bus.Names().TypeFilter(paid.Type())
		stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().EventsStream())
		if err != nil {
			return err
		}
		info, err := stream.Info(s.tb.Context(), jetstream.WithSubjectFilter(filter))
		if err != nil {
			return err
		}
		got := int64(0)
		for _, n := range info.State.Subjects {
			got += int64(n)
		}
		letters, err := s.queue().List(s.tb.Context(), dlq.Filter{}, dlq.PageOptions{Limit: 1})
		if err != nil {
			return err
		}
		if got < want || letters.Total < len(s.poison) {
			return fmt.Errorf("%d of %d orders are paid, %d of %d parked", got, want, letters.Total, len(s.poison))
		}
		return nil
	})
	for _, m := range s.live {
		s.end(m)
	}
	s.ending.Wait()
	s.paidInOrder()
	s.parkedOnce()
	s.floorsAtTheEnd()
}

// paidInOrder checks that each order was paid once, in the order of its key.
func (s *storm) paidInOrder() {
	s.tb.Helper()
	var next [stormKeys]int64
	ids := map[string]bool{}
	skip := func(key int) {
		for slices.Contains(s.poison, fmt.Sprintf("%d-%d poison", key, next[key])) {
			next[key]++
		}
	}
	for _, e := range s.stored(paid.Type()) {
		var key int
		var n int64
		if _, err := fmt.Sscanf(e.Subject(), "%d-%d", &key, &n); err != nil {
			s.tb.Fatalf("payment of %q: %v", e.Subject(), err)
		}
		if skip(key); n != next[key] {
			s.tb.Fatalf("order %s is paid where %d-%d is due", e.Subject(), key, next[key])
		}
		next[key]++
		if ids[e.ID()] {
			s.tb.Errorf("%s of order %s is there twice", e.ID(), e.Subject())
		}
		ids[e.ID()] = true
	}
	for key := range next {
		if skip(key); next[key] != s.orders[key] {
			s.tb.Errorf("key %d: %d orders paid or parked, want %d", key, next[key], s.orders[key])
		}
	}
}

// parkedOnce checks that each order that always fails has one letter, and no other has.
func (s *storm) parkedOnce() {
	s.tb.Helper()
	var page dlq.Page
	bustest.Eventually(s.tb, soon, func() (err error) { // the stream may be without a leader for a moment
		page, err = s.queue().List(s.tb.Context(), dlq.Filter{}, dlq.PageOptions{Limit: 10_000})
		return err
	})
	var parked []string
	for _, entry := range page.Entries {
		parked = append(parked, entry.EventID)
	}
	slices.Sort(parked)
	poison := slices.Sorted(slices.Values(s.poison))
	if !slices.Equal(parked, poison) {
		s.tb.Errorf("parked %v, want %v", parked, poison)
	}
}

// floorsAtTheEnd checks that nothing is open on any partition. One that was told to stop
// while it took a partition has left its fence, and has run nothing.
func (s *storm) floorsAtTheEnd() {
	s.tb.Helper()
	var heads map[int]dedup.Head
	bustest.Eventually(s.tb, soon, func() (err error) {
		heads, err = s.open(s.bus).Partitions().Heads(s.tb.Context(), "payment")
		return err
	})
	for _, m := range s.messages(s.bus.Names().EventsStream(), s.bus.Names().TypeFilter(placed.Type())) {
		meta, err := m.Metadata()
		if err != nil {
			s.tb.Fatal(err)
		}
		p, ok := s.bus.Names().StoredPartition(m.Subject)
		if h := heads[p]; !ok || h.Floor < meta.Sequence.Stream || !h.Farewell && h.Page != "fence" {
			s.tb.Fatalf("%s at sequence %d is not below the floor of its partition: %+v", m.Subject, meta.Sequence.Stream, h)
		}
	}
}

// tolled is what happened to the members of storms.
type tolled struct {
	mu                                                                                              sync.Mutex
	takeOvers, ofZombies, again, farewells, crashes, isolations, leaders, orders, runs, parked, all int
}

func (x *tolled) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return fmt.Sprintf("%d storms: %d partitions taken over without a farewell, %d of them from zombies, %d taken again, %d handed over; %d crashes, %d isolations, %d leader changes; %d orders in %d runs, %d parked",
		x.all, x.takeOvers, x.ofZombies, x.again, x.farewells, x.crashes, x.isolations, x.leaders, x.orders, x.runs, x.parked)
}

// count reads from the pages who followed whom, and how.
func (s *storm) count(x *tolled) {
	s.tb.Helper()
	pages := s.messages(s.bus.Names().EventsStream(), s.bus.Names().Root("ledger.payment.*.page"))
	x.mu.Lock()
	defer x.mu.Unlock()
	zombies := map[string]bool{}
	for _, m := range s.all {
		if id := m.owner.Load(); id != nil && m.zombie {
			zombies[*id] = true
			x.isolations++
		}
		if m.crashed {
			x.crashes++
		}
	}
	before := map[string]nats.Header{}
	for _, m := range pages {
		last, page := before[m.Subject], m.Header
		before[m.Subject] = page
		if page.Get("Farandole-Page") != "fence" || last == nil {
			continue
		}
		switch owner := last.Get("Farandole-Owner"); {
		case last.Get("Farandole-Page") == "farewell":
			x.farewells++
		case owner == page.Get("Farandole-Owner"):
			x.again++
		default:
			x.takeOvers++
			if zombies[owner] {
				x.ofZombies++
			}
		}
	}
	for _, n := range s.orders {
		x.orders += int(n)
	}
	for _, n := range s.runs.all() {
		x.runs += n
	}
	x.parked += len(s.poison)
	x.leaders += s.leaders
	x.all++
}
