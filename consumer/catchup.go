package consumer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
)

// A subject that is added to a running durable would be taken up where the
// durable stands: what is stored before never comes. So a second durable,
// <name>_catchup, gets the subject from its beginning, and goes when it has
// come to what was stored before the first one knew the subject. It is made before the first one is widened:
// whatever dies in between, the next bind finds the one or the other missing.
// What both deliver takes effect once, by the ledger.

const (
	// rememberedSlack is how much later than the retention's beginning a durable
	// starts that is made anew, at most: marks go on ending while it delivers.
	rememberedSlack = time.Minute
	// catchUpShare is the part of InFlight that a catch-up has besides.
	catchUpShare = 4
	// countIdle is how long a consumer that only counts lives.
	countIdle = 10 * time.Second
)

// catchUpName is the durable that catches up: no other consumer's name has an underscore.
func catchUpName(durable string) string { return durable + "_catchup" }

// catchUpOn provides a durable that catches up on subjects which the consumer's
// durable lacks, and returns those that may be added to that now; the others
// wait until an earlier catch-up is over.
func (c *Consumer) catchUpOn(ctx context.Context, s source, have, missing []string) ([]string, error) {
	name := catchUpName(s.durable)
	found, err := c.lookUp(ctx, s.stream, name)
	if err != nil {
		return nil, err
	}
	c.durables.look(s.stream)
	if found != nil {
		under := filtersOf(found.Config)
		if len(uncovered(missing, under)) == len(missing) {
			return nil, nil
		}
		return under, nil
	}
	known, ok, err := c.known(ctx, s.stream)
	if err != nil {
		return nil, err
	}
	// What was never handled starts where the stream does. What may have been, or
	// was lost from the durable, starts where the ledger's memory does, one after the other.
	fresh := slices.DeleteFunc(slices.Clone(missing), func(f string) bool {
		return !ok || among(known, overlaps, f) || among(have, overlaps, f)
	})
	cfg := c.needs(name, fresh)
	cfg.Description += ", catching up"
	if len(fresh) == 0 {
		cfg.FilterSubjects = missing
		if err := c.startRemembered(ctx, &cfg); err != nil {
			return nil, err
		}
	}
	if err := c.make(ctx, s.stream, cfg); err != nil {
		return nil, err
	}
	c.log.Info().Str("stream", s.stream).Strs("subjects", cfg.FilterSubjects).Msg("subjects added to the durable; catching up on what is stored of them")
	if cfg.OptStartTime != nil {
		c.tellSkipped(ctx, s.stream, cfg, "the durable had lost these subjects: what is older than the ledger remembers may have taken effect and is not delivered")
	}
	return cfg.FilterSubjects, nil
}

// startRemembered makes a durable start where the ledger's memory does.
func (c *Consumer) startRemembered(ctx context.Context, cfg *jetstream.ConsumerConfig) error {
	m, ok := c.ledger.(memory)
	if !ok {
		return nil
	}
	now, err := m.Now(ctx)
	if err != nil {
		return err
	}
	start := now.Add(min(m.Retention()/10, rememberedSlack) - m.Retention())
	cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &start
	return nil
}

// tellSkipped says how many events of each subject are stored before the
// durable's start.
func (c *Consumer) tellSkipped(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, text string) {
	m, ok := c.ledger.(memory)
	if !ok {
		return
	}
	skipped := zerolog.Dict()
	for _, f := range cfg.FilterSubjects {
		n, err := c.storedBefore(ctx, stream, f, *cfg.OptStartTime)
		if err != nil {
			skipped = skipped.Str(f, "not counted: "+err.Error())
			continue
		}
		skipped = skipped.Uint64(f, n)
	}
	c.log.Warn().Str("stream", stream).Dur("retention", m.Retention()).Time("starts_at", *cfg.OptStartTime).Dict("skipped", skipped).Msg(text)
}

// storedBefore counts the messages on a subject that are older than start.
func (c *Consumer) storedBefore(ctx context.Context, stream, filter string, start time.Time) (uint64, error) {
	all, err := countPending(ctx, c.bus, stream, jetstream.ConsumerConfig{FilterSubject: filter})
	if err != nil {
		return 0, err
	}
	rest, err := countPending(ctx, c.bus, stream, jetstream.ConsumerConfig{
		FilterSubject: filter, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &start,
	})
	return all - min(all, rest), err
}

// countPending counts what a consumer so configured would be given.
func countPending(ctx context.Context, b *bus.Bus, stream string, cfg jetstream.ConsumerConfig) (n uint64, err error) {
	cfg.Name = "count-" + rand.Text()
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas, cfg.InactiveThreshold = jetstream.AckNonePolicy, true, 1, countIdle
	err = b.Ask(ctx, "CONSUMER.CREATE."+stream+"."+cfg.Name, func(ctx context.Context) error {
		counter, err := b.JetStream().CreateConsumer(ctx, stream, cfg)
		if err == nil {
			n = counter.CachedInfo().NumPending
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, b.Ask(ctx, "CONSUMER.DELETE."+stream+"."+cfg.Name, func(ctx context.Context) error {
		return b.JetStream().DeleteConsumer(ctx, stream, cfg.Name)
	})
}

// tend looks after a source's durable until ctx ends: it mends what others have
// narrowed or shortened, and pulls from the durable that catches up while there is one.
func (c *Consumer) tend(ctx, work context.Context, s source) {
	part := "durable " + s.stream
	c.durables.look(s.stream) // one may be left by a process that died
	var run *catchUp
	defer func() { run.stop() }()
	said := ""
	for ctx.Err() == nil {
		err := c.bind(ctx, s)
		if err == nil && c.durables.looking(s.stream) {
			run, err = c.follow(ctx, work, s, run)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			c.health.clear(part)
			said = ""
		default:
			c.health.set(part, err)
			if said != err.Error() {
				said = err.Error()
				c.log.Error().Err(err).Str("stream", s.stream).Msg("durable is not as it should be, will try again")
			}
		}
		every := c.cfg.Lease / 3
		if err != nil || c.durables.looking(s.stream) {
			every = min(every, bindRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// catchUp is a pull from a durable that catches up.
type catchUp struct {
	created time.Time // the durable
	// goal is the end of the stream when the consumer's durable had been widened:
	// what is stored after comes by that. Where the durable stands is no measure: it
	// has passed over more than it tells, namely all that it did not match.
	goal   uint64
	cancel context.CancelFunc
	pull   sync.WaitGroup
}

func (u *catchUp) stop() {
	if u != nil {
		u.cancel()
		u.pull.Wait()
	}
}

// follow begins, goes on with or ends a catch-up. run is the one under way, nil if none.
func (c *Consumer) follow(ctx, work context.Context, s source, run *catchUp) (*catchUp, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	name := catchUpName(s.durable)
	found, err := c.lookUp(ctx, s.stream, name)
	if err != nil {
		return run, err
	}
	if run != nil && (found == nil || !found.Created.Equal(run.created)) {
		run.stop()
		run = nil
	}
	if found == nil {
		c.durables.leave(s.stream)
		return nil, nil
	}
	filters := filtersOf(found.Config)
	if !slices.ContainsFunc(filters, func(f string) bool { return among(s.filters, overlaps, f) }) {
		return nil, nil // it waits for a version that handles these
	}
	if run == nil {
		first, err := c.lookUp(ctx, s.stream, s.durable)
		if err != nil || first == nil || len(uncovered(filters, filtersOf(first.Config))) > 0 {
			return nil, err // not widened yet
		}
		if err := c.adjust(ctx, s.stream, found.Config, filters); err != nil {
			return nil, err
		}
		stream, err := c.bus.Stream(ctx, s.stream)
		if err != nil {
			return nil, err
		}
		run = c.beginCatchUp(work, s, name, filters)
		run.created, run.goal = found.Created, stream.CachedInfo().State.LastSeq
	}
	last, err := c.lastOf(ctx, s.stream, filters)
	if err != nil || found.AckFloor.Stream < min(last, run.goal) {
		return run, err
	}
	run.stop()
	// The server deletes by name alone, so nothing may come between the look and
	// this: another replica may delete it as well, and a third make the next one.
	err = c.bus.Ask(ctx, "CONSUMER.DELETE."+s.stream+"."+name, func(ctx context.Context) error {
		return c.bus.JetStream().DeleteConsumer(ctx, s.stream, name)
	})
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, err
	}
	c.log.Info().Str("stream", s.stream).Strs("subjects", filters).Msg("caught up")
	return nil, nil
}

func (c *Consumer) beginCatchUp(work context.Context, s source, name string, filters []string) *catchUp {
	share := max(1, c.cfg.InFlight/catchUpShare)
	s.durable, s.filters, s.share, s.catchingUp = name, filters, share, true
	s.budget = newBudget(share)
	ctx, cancel := context.WithCancel(work)
	run := &catchUp{cancel: cancel}
	run.pull.Go(func() { c.pull(ctx, work, s) })
	return run
}

// lastOf asks the stream's leader for the last sequence on the filters, 0 if
// there is nothing: a replica that lags would end a catch-up too early.
func (c *Consumer) lastOf(ctx context.Context, stream string, filters []string) (last uint64, err error) {
	for _, f := range filters {
		body, err := json.Marshal(map[string]string{"last_by_subj": f})
		if err != nil {
			return 0, err
		}
		var m *nats.Msg
		err = c.bus.Ask(ctx, "STREAM.MSG.GET."+stream, func(ctx context.Context) (err error) {
			m, err = c.bus.Conn().RequestWithContext(ctx, c.bus.APIPrefix()+"STREAM.MSG.GET."+stream, body)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("last message on %s: %w", f, err)
		}
		sequence, err := sequenceOf(m)
		if err != nil {
			return 0, fmt.Errorf("last message on %s: %w", f, err)
		}
		last = max(last, sequence)
	}
	return last, nil
}

// sequenceOf reads an answer of $JS.API.STREAM.MSG.GET.
func sequenceOf(m *nats.Msg) (uint64, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Sequence uint64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return 0, err
	}
	if answer.Error != nil && answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return 0, answer.Error
	}
	return answer.Message.Sequence, nil
}
