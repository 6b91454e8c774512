package hopbench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// source is the CloudEvents source of the events that wait on a stage.
const source = "/bench"

// publishTimeout is longer than the default: a slow server is to be measured,
// with as many publishes waiting as the window holds.
const publishTimeout = time.Minute

// cleanupTimeout bounds the deletion of a stage, which an interrupt does not stop.
const cleanupTimeout = 30 * time.Second

// Stage is a system of its own, with a connection of its own.
type Stage struct {
	Bus     *bus.Bus
	streams []string // made here
}

// Prefix returns a random prefix for a stage.
func Prefix() string { return "bench-" + strings.ToLower(rand.Text()[:12]) }

// Open connects and provisions a stage under prefix. It returns an error
// matching [ErrExists] when there is anything under the prefix already, and the
// errors of [bus.Connect] and [topology.Provision]; nothing is left behind then.
func Open(ctx context.Context, connect bus.Config, prefix string, replicas int) (*Stage, error) {
	connect.Names = event.Names{Prefix: prefix}
	connect.Source = source
	connect.PublishTimeout = publishTimeout
	b, err := bus.Connect(ctx, connect)
	if err != nil {
		return nil, err
	}
	s := &Stage{Bus: b}
	if err := s.provision(ctx, replicas); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// provision creates all streams or none.
func (s *Stage) provision(ctx context.Context, replicas int) error {
	plan, err := topology.NewPlan(ctx, s.Bus, topology.New(s.Bus.Names(), topology.Config{Replicas: replicas}))
	if err != nil {
		return err
	}
	if err := plan.Err(); err != nil {
		return err
	}
	for _, step := range plan.Steps {
		if step.Action != topology.ActionCreate {
			return fmt.Errorf("%w: %s: stream %s exists", ErrExists, s.Bus.Names().Prefix, step.Stream)
		}
	}
	for _, step := range plan.Steps {
		s.streams = append(s.streams, step.Stream)
	}
	return topology.Apply(ctx, s.Bus, plan)
}

// Close deletes what [Open] made, also when ctx has ended, and disconnects. Its
// error names the streams that are left, if any.
func (s *Stage) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var errs []error
	for _, name := range s.streams {
		err := s.Bus.JetStream().DeleteStream(ctx, name)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, fmt.Errorf("hop: stream %s is left behind: delete it: %w", name, err))
		}
	}
	return errors.Join(append(errs, s.Bus.Close())...)
}

// publishAhead is how many publishes are begun before the first is waited for.
const publishAhead = 8192

// Publish stores the events from the first-th on, n of them.
func (s *Stage) Publish(ctx context.Context, first, n int) error {
	var ahead [publishAhead]*bus.Pending
	for i := range n + publishAhead {
		if p := ahead[i%publishAhead]; p != nil {
			if _, err := p.Wait(ctx); err != nil {
				return err
			}
			ahead[i%publishAhead] = nil
		}
		if i >= n {
			continue
		}
		e, err := s.Bus.Seal(Draft(first + i))
		if err != nil {
			return err
		}
		if ahead[i%publishAhead], err = s.Bus.PublishAsync(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// Verify checks that events 0 to n-1 have each been turned into one outgoing
// event, stored once. The error matches [ErrUnverified].
func (s *Stage) Verify(ctx context.Context, n int) error {
	stored, err := s.Outgoing(ctx)
	if err != nil {
		return err
	}
	missing, doubled := 0, 0
	for i := range n {
		switch count := stored[s.Bus.Names().EventSubject(Out.Type(), KeyOf(i))]; {
		case count == 0:
			missing++
		case count > 1:
			doubled++
		}
	}
	if extra := len(stored) - (n - missing); missing+doubled+extra > 0 {
		return fmt.Errorf("%w: of %d outgoing events %d are missing, %d are stored more than once, %d others are there", ErrUnverified, n, missing, doubled, extra)
	}
	return nil
}

// Outgoing counts the stored outgoing events by the subject on which they were published.
func (s *Stage) Outgoing(ctx context.Context) (map[string]uint64, error) {
	names := s.Bus.Names()
	stream, err := s.Bus.Stream(ctx, names.EventsStream())
	if err != nil {
		return nil, fmt.Errorf("hop: verify: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(names.TypeFilter(Out.Type())))
	if err != nil {
		return nil, fmt.Errorf("hop: verify: %w", err)
	}
	counts := map[string]uint64{}
	for subject, n := range info.State.Subjects {
		counts[names.Published(subject)] += n
	}
	return counts, nil
}
