package consumer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/consumer/internal/members"
	"github.com/farandole/farandole/dedup"
)

// share is what this process has of the consumer's partitions. The members of the
// consumer agree on who shall have which (package members); what makes it safe is the
// ledger alone, which stores nothing for an owner after the next one has begun.
type share struct {
	consumer *Consumer
	ledger   *dedup.Partitions
	group    *members.Group
	count    int // partitions of the system
	handOver sync.WaitGroup
	// pull reads a feed until ctx ends, and admit takes in what has waited here: both
	// with the context of the handlers.
	pull  func(ctx context.Context, f *feed)
	admit func(d *delivery)

	// before is where the durable was that replicas shared, before the consumer had this
	// ledger.
	before before
	// begin is the sequence after which the consumer began ([Config.Start]).
	begin uint64
	// old is how many events a new consumer is given that were stored before it began.
	old uint64

	owned  map[int]*partition
	feeds  []*reading
	wanted map[int]time.Time // since when another has what is ours
	gone   chan struct{}     // signals that a partition was handed over
	left   func()            // has the group end
}

// reading is a feed that is read.
type reading struct {
	*feed
	live int
	stop context.CancelFunc
	done chan struct{}
}

const (
	// balanceEvery is how often is looked whether an owner before has finished.
	balanceEvery = 100 * time.Millisecond
	// reviewEvery is how often is looked whether partitions were lost without a word.
	reviewEvery = 2 * time.Second
	// tellEvery is how often progress is told to the server.
	tellEvery = 500 * time.Millisecond
	// farewellTimeout bounds a farewell; without it the next owner is careful.
	farewellTimeout = 2 * time.Second
)

// newShare is what this process is going to have of the partitions, for a ledger with
// them; nil for others. Its handlers run in work. It begins with [share.prepare] and
// [share.join], and ends with [share.close] and [share.leave].
func (c *Consumer) newShare(work context.Context) *share {
	l := c.ledger.Partitions()
	if l == nil {
		return nil
	}
	return &share{
		consumer: c, ledger: l,
		pull:  func(ctx context.Context, f *feed) { c.pull(ctx, work, f) },
		admit: func(d *delivery) { c.admit(work, d) },
		owned: map[int]*partition{}, wanted: map[int]time.Time{}, gone: make(chan struct{}, 1),
	}
}

// prepare finds how many partitions there are, and where the consumer begins in them.
func (s *share) prepare(ctx context.Context) (err error) {
	if s.count, err = s.ledger.Count(ctx); err != nil {
		return fmt.Errorf("consumer: %s: %w", s.consumer.cfg.Name, err)
	}
	if err = s.lookBack(ctx); err != nil {
		return err
	}
	return s.introduce(ctx)
}

// join joins the members of the consumer.
func (s *share) join(ctx context.Context) {
	c := s.consumer
	s.group = members.New(members.Config{Bus: c.bus, Consumer: c.cfg.Name, Partitions: s.count, Logger: c.log})
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.group.Run(live); err != nil {
			c.health.Set(partMembers, err)
		}
	}()
	s.left = func() {
		end()
		<-ended
	}
}

// run keeps this process's share until ctx ends.
func (s *share) run(ctx context.Context) {
	balance, tell, review := time.NewTicker(balanceEvery), time.NewTicker(tellEvery), time.NewTicker(reviewEvery)
	defer balance.Stop()
	defer tell.Stop()
	defer review.Stop()
	for {
		s.balance(ctx)
		select {
		case <-ctx.Done():
			return
		case <-s.group.Changed():
		case <-balance.C:
		case <-s.gone:
		case <-review.C:
			s.review(ctx)
		case <-tell.C:
			for _, f := range s.feeds {
				f.slice.tell()
			}
		}
	}
}

// review finds partitions that another process has taken, and given up since: nobody
// tells the owner before while it has nothing to store.
func (s *share) review(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
	defer cancel()
	if err := s.consumer.review(ctx, s.group.ID(), s.owned); err != nil {
		s.consumer.log.Debug().Err(err).Msg("owners not known: whoever has something to store is told")
	}
}

// review ends the tenures of partitions whose last page is not owner's, or is gone: a
// stream that has lost its end may have new events below the floor. A partition that is
// being given up is among them: its next owner does not wait for ever for what runs, and
// it may come back to this process. It asks for all pages at once, and the stream's leader for those that are not as expected.
func (c *Consumer) review(ctx context.Context, owner string, partitions map[int]*partition) error {
	pages := make(map[int]uint64, len(partitions))
	for n, p := range partitions {
		pages[n] = p.tenure.Page()
	}
	heads, err := c.ledger.Partitions().Heads(ctx, c.cfg.Name)
	if err != nil {
		return err
	}
	for n, p := range partitions {
		if heads[n].Owner == owner && heads[n].Sequence >= pages[n] {
			continue
		}
		if err := p.tenure.Review(ctx); err != nil {
			return err
		}
	}
	return nil
}

// balance gives up what is another's, and takes what is this process's.
func (s *share) balance(ctx context.Context) {
	for n, p := range s.owned {
		select {
		case <-p.tenure.Lost():
			if !p.closed() {
				s.consumer.log.Warn().Int("partition", n).Msg("partition lost to another process")
			}
			p.close()
			delete(s.owned, n)
		default:
		}
	}
	view := s.group.View()
	if err := s.group.Err(); err != nil {
		s.consumer.health.Set(partMembers, err)
	} else {
		s.consumer.health.Clear(partMembers)
	}
	if !view.Known {
		return
	}
	for n, p := range s.owned {
		if !slices.Contains(view.Own, n) && !p.closed() {
			s.hand(n, p) //nolint:contextcheck // a farewell outlives the process's readiness to work
		}
	}
	if taken := s.take(ctx, s.free(ctx, view)); len(taken) > 0 {
		s.read(ctx, taken)
	}
	s.trim(ctx)
}

// free are the partitions that are this process's and that nobody works on: their
// owner has said farewell, or is gone. One that is there and does not let go gets as
// long as a handler may take.
func (s *share) free(ctx context.Context, view members.View) (free []int) {
	missing := slices.DeleteFunc(slices.Clone(view.Own), func(n int) bool { return s.owned[n] != nil })
	maps.DeleteFunc(s.wanted, func(n int, _ time.Time) bool { return !slices.Contains(missing, n) })
	if len(missing) == 0 {
		s.consumer.health.Clear(partShare)
	}
	if len(missing) == 0 || ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
	defer cancel()
	heads, err := s.ledger.Heads(ctx, s.consumer.cfg.Name)
	if err != nil {
		s.consumer.health.Set(partShare, err)
		return nil
	}
	for _, n := range missing {
		head := heads[n]
		if head.Owner != "" && !head.Farewell && head.Owner != s.group.ID() && view.Live(head.Owner) {
			if s.wanted[n].IsZero() {
				s.wanted[n] = time.Now()
			}
			if time.Since(s.wanted[n]) < s.consumer.cfg.HandlerTimeout {
				continue
			}
		}
		free = append(free, n)
	}
	return free
}

// take takes partitions.
func (s *share) take(ctx context.Context, free []int) map[int]*partition {
	if len(free) == 0 {
		return nil
	}
	err := s.lookBack(ctx)
	var tenures map[int]*dedup.Tenure
	if err == nil {
		tenures, err = s.ledger.Take(ctx, s.consumer.cfg.Name, free, dedup.Ownership{
			Owner: s.group.ID(), Window: s.consumer.cfg.InFlight, Types: s.consumer.registry.types,
			From: s.before.floor, Known: s.before.types, Begin: s.begin,
		})
	}
	switch {
	case err == nil:
		s.consumer.health.Clear(partShare)
	case ctx.Err() == nil:
		s.consumer.health.Set(partShare, err)
		s.consumer.log.Warn().Err(err).Ints("partitions", free).Msg("partitions not taken, will try again")
	}
	taken := map[int]*partition{}
	for n, t := range tenures {
		taken[n] = &partition{consumer: s.consumer, tenure: t, admit: s.admit, idle: make(chan struct{})}
		s.owned[n] = taken[n]
		delete(s.wanted, n)
	}
	return taken
}

// read has a new feed read what was taken at once.
func (s *share) read(ctx context.Context, taken map[int]*partition) {
	c := s.consumer
	s.readSlice(ctx, newSlice(c, s.group.ID(), s.count, taken))
	if late := newCatchUp(c, s.group.ID(), s.count, taken); late != nil {
		s.readSlice(ctx, late)
	}
	s.divide()
}

func (s *share) readSlice(ctx context.Context, of *slice) {
	c := s.consumer
	f := &feed{stream: c.bus.Names().EventsStream(), own: true, budget: newBudget(1), slice: of}
	reads, stop := context.WithCancel(ctx)
	r := &reading{feed: f, live: len(of.partitions), stop: stop, done: make(chan struct{})}
	s.feeds = append(s.feeds, r)
	go func() {
		defer close(r.done)
		s.pull(reads, f)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
		defer cancel()
		f.slice.remove(end, f.name)
	}()
}

// trim ends the feeds that have nothing left to read, and narrows those that have less.
func (s *share) trim(ctx context.Context) {
	changed := false
	s.feeds = slices.DeleteFunc(s.feeds, func(r *reading) bool {
		if r.slice.behind != nil && r.slice.catchUp(ctx) {
			r.stop()
			changed = true
			return true
		}
		live := len(r.slice.live())
		if live == r.live {
			return false
		}
		changed = true
		if r.live = live; live == 0 {
			r.stop()
			return true
		}
		r.slice.breakOff()
		return false
	})
	if changed {
		s.divide()
	}
}

// divide gives each feed its part of InFlight, by its number of partitions.
func (s *share) divide() {
	all := 0
	for _, r := range s.feeds {
		all += r.live
	}
	for _, r := range s.feeds {
		r.budget.resize(max(1, s.consumer.cfg.InFlight*r.live/max(1, all)))
	}
}

// hand gives a partition up: what runs may finish, then the next owner is told.
func (s *share) hand(n int, p *partition) {
	p.close()
	s.handOver.Go(func() {
		select {
		case <-p.idle:
		case <-p.tenure.Lost():
		case <-s.consumer.abandoned:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
		defer cancel()
		if err := p.tenure.Farewell(ctx); err != nil {
			s.consumer.log.Warn().Err(err).Int("partition", n).Msg("no farewell: the next owner takes it for a crash")
		}
		select {
		case s.gone <- struct{}{}:
		default:
		}
	})
}

// leave ends this process's membership, when all is handed over that can be.
func (s *share) leave() {
	s.handOver.Wait()
	s.left()
}

// close hands everything over, as soon as nothing of it runs.
func (s *share) close(ctx context.Context) {
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	for n, p := range s.owned {
		if !p.closed() {
			s.hand(n, p) //nolint:contextcheck // likewise
		}
	}
	if err := s.group.Leave(leave); err != nil {
		s.consumer.log.Warn().Err(err).Msg("the other members learn late that this process leaves")
	}
	for _, r := range s.feeds {
		r.stop()
		<-r.done
	}
}
