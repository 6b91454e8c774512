package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Before timers had a stream of their own they waited in the event stream. Where
// that was made anew without schedules they are still there, and nobody fires
// them: applying a plan moves them.

// planTimers adds to the event stream's step how many timers are to be moved.
func (b *Bus) planTimers(ctx context.Context, step *Step) error {
	left, err := b.strayTimers(ctx)
	if err != nil || left == 0 {
		return err
	}
	step.Changes = append(step.Changes, Change{
		Setting: "timers", Have: fmt.Sprintf("%d in %s", left, step.Stream), Want: "in " + b.cfg.Names.TimersStream(), Safe: true,
	})
	if step.Action == ActionKeep {
		step.Action = ActionUpdate
	}
	return nil
}

// strayTimers counts what waits in the event stream.
func (b *Bus) strayTimers(ctx context.Context) (n uint64, err error) {
	name := b.cfg.Names.EventsStream()
	err = b.ask(ctx, "STREAM.INFO."+name, ErrTopology, func(ctx context.Context) error {
		stream, err := b.js.Stream(ctx, name)
		if err != nil {
			return err
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(b.cfg.Names.Root("timer.>")))
		if err != nil {
			return err
		}
		n = uint64(len(info.State.Subjects))
		return nil
	})
	return n, err
}

// moveTimers moves them. Doing it again after an error is safe: one that is in
// the stream of timers already stays as it is there.
func (b *Bus) moveTimers(ctx context.Context) error {
	name := b.cfg.Names.EventsStream()
	stream, err := b.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("bus: move timers: %w", err)
	}
	for sequence := uint64(1); ; sequence++ {
		m, err := stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(b.cfg.Names.Root("timer.>")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err == nil {
			sequence = m.Sequence
			err = b.moveTimer(ctx, m)
		}
		if err == nil {
			err = stream.DeleteMsg(ctx, sequence)
		}
		if err != nil {
			return fmt.Errorf("bus: move timer at sequence %d of %s: %w", sequence, name, requestFault(err, ErrTopology))
		}
	}
}

// moveTimer stores a timer anew, unless it has been set again since.
func (b *Bus) moveTimer(ctx context.Context, m *jetstream.RawStreamMsg) error {
	target := m.Header.Get(jetstream.ScheduleTargetHeader)
	if target == "" {
		return nil // what is left of one that was cancelled
	}
	moved := &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
	moved.Header[jetstream.ScheduleTargetHeader] = []string{b.cfg.Names.DueSubject(target)}
	moved.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
	pending, err := b.Send(ctx, moved)
	if err == nil {
		_, err = pending.Wait(ctx)
	}
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}
