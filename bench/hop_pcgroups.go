package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/pcgroups"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
)

// groupMember is the name of the one process of the group.
const groupMember = "m1"

// groupHop is the raw loop on an elastic partitioned consumer group of orbit.go. The
// group copies the waiting events into a work queue of its own, with the partition
// in front of the subject; the copying is a part of the hop. It is as unsafe as the raw loop.
func groupHop(ctx context.Context, s *hopbench.Stage, n int) (err error) {
	js, err := clientOf(s)
	if err != nil {
		return err
	}
	names := s.Bus.Names()
	stream := names.EventsStream()
	byKey := pcgroups.PartitioningFilter{ // events.bench.in.v1.<partition>.<key>
		Filter: strings.TrimSuffix(names.TypeFilter(hopbench.In.Type()), ">") + "*.*", PartitioningWildcards: []int{2},
	}
	if _, err := pcgroups.CreateElastic(ctx, js, stream, hopbench.ConsumerName, event.DefaultPartitions, []pcgroups.PartitioningFilter{byKey}, -1, -1); err != nil {
		return fmt.Errorf("pcgroups: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = errors.Join(err, pcgroups.DeleteElastic(ctx, js, stream, hopbench.ConsumerName))
	}()
	if _, err := pcgroups.AddMembers(ctx, js, stream, hopbench.ConsumerName, []string{groupMember}); err != nil {
		return fmt.Errorf("pcgroups: %w", err)
	}
	stop, err := rawLoop(ctx, s, js, func(handle func(jetstream.Msg)) (func(), error) {
		member, err := pcgroups.ElasticConsume(ctx, js, stream, hopbench.ConsumerName, groupMember, handle,
			jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: inFlight, AckWait: patience})
		if err != nil {
			return nil, fmt.Errorf("pcgroups: %w", err)
		}
		return func() {
			member.Stop()
			<-member.Done()
		}, nil
	}, n)
	if err != nil {
		return err
	}
	return stop(ctx)
}
