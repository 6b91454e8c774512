package consumer

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/event"
)

// before is up to where events were handled that were read by a shared durable.
type before struct {
	floor uint64
	types []event.Type
}

// lookBack finds the durable that the consumer had with another ledger. Partitions begin
// where it has ended. Events that it has delivered and that have not ended are an error,
// while no partition has had an owner: the ledger before knows what became of them.
func (s *share) lookBack(ctx context.Context) error {
	c := s.consumer
	s.before, s.begin = before{}, 0 // a stream that was made anew has neither the durable nor its sequences
	since, err := c.beginning().Since(ctx, false)
	if err == nil && !since.IsZero() {
		s.begin, err = durable.LastBefore(ctx, c.bus, c.bus.Names().EventsStream(), since)
	}
	if err != nil {
		return fmt.Errorf("consumer: %s: where it began: %w", c.cfg.Name, err)
	}
	found, err := durable.Look(ctx, c.bus, c.bus.Names().EventsStream(), string(c.cfg.Name))
	if err != nil || found == nil {
		return err
	}
	s.before.floor = found.AckFloor.Stream
	filters := append(slices.Clone(found.Config.FilterSubjects), found.Config.FilterSubject)
	for _, t := range c.registry.types {
		if slices.ContainsFunc(filters, func(f string) bool { return event.SubjectCovers(f, c.bus.Names().TypePartitionFilter(t, 0)) }) {
			s.before.types = append(s.before.types, t)
		}
	}
	heads, err := s.ledger.Heads(ctx, c.cfg.Name)
	if err == nil && len(heads) == 0 && found.NumAckPending > 0 {
		return fmt.Errorf("%w: %s: %d events were delivered by the durable %s and have not ended: let the ledger before finish them, then change to partitions",
			ErrConfig, c.cfg.Name, found.NumAckPending, c.cfg.Name)
	}
	return err
}

// beginning is where the consumer begins in the event stream, if its name is new.
func (c *Consumer) beginning() durable.Beginning {
	return durable.Beginning{
		Bus: c.bus, Ledger: c.ledger, Consumer: c.cfg.Name, Stream: c.bus.Names().EventsStream(), Start: durable.Start(c.cfg.Start),
	}
}

// introduce decides where a new consumer begins, and logs what it is given. It is new if
// it has no page, and had no other ledger before.
func (s *share) introduce(ctx context.Context) error {
	c := s.consumer
	heads, err := s.ledger.Heads(ctx, c.cfg.Name)
	if err != nil || len(heads) > 0 || s.before.floor > 0 {
		return err
	}
	since, err := c.beginning().Since(ctx, true)
	if err != nil {
		return fmt.Errorf("consumer: %s: where it begins: %w", c.cfg.Name, err)
	}
	var cfg jetstream.ConsumerConfig
	for _, t := range c.registry.types {
		cfg.FilterSubjects = append(cfg.FilterSubjects, c.bus.Names().TypeFilter(t))
	}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	s.old, err = durable.CountPending(ctx, c.bus, c.bus.Names().EventsStream(), cfg)
	if err != nil {
		c.log.Debug().Err(err).Msg("old events not counted")
	}
	c.beginning().LogOld(ctx, c.log, s.old, since)
	return nil
}
