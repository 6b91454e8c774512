package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// Before timers had a stream of their own they waited in the event stream. Where
// that was made anew without schedules they are still there, and nobody fires
// them: applying a plan moves them.

// planTimers adds to the event stream's step how many timers are to be moved.
func planTimers(ctx context.Context, b *bus.Bus, step *Step) error {
	left, err := strayTimers(ctx, b)
	if err != nil || left == 0 {
		return err
	}
	step.Changes = append(step.Changes, Change{
		Setting: "timers", Have: fmt.Sprintf("%d in %s", left, step.Stream), Want: "in " + b.Names().TimersStream(), Safe: true,
	})
	if step.Action == ActionKeep {
		step.Action = ActionUpdate
	}
	return nil
}

// strayTimers counts what waits in the event stream.
func strayTimers(ctx context.Context, b *bus.Bus) (n uint64, err error) {
	name := b.Names().EventsStream()
	err = ask(ctx, b, "STREAM.INFO."+name, func(ctx context.Context) error {
		stream, err := b.JetStream().Stream(ctx, name)
		if err != nil {
			return err
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(b.Names().Root("timer.>")))
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
func moveTimers(ctx context.Context, b *bus.Bus) error {
	name := b.Names().EventsStream()
	stream, err := b.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("topology: move timers: %w", err)
	}
	for sequence := uint64(1); ; sequence++ {
		var m *jetstream.RawStreamMsg
		err := ask(ctx, b, "STREAM.MSG.GET."+name, func(ctx context.Context) (err error) {
			m, err = stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(b.Names().Root("timer.>")))
			return err
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err == nil {
			sequence = m.Sequence
			err = moveTimer(ctx, b, m)
		}
		if err == nil {
			err = ask(ctx, b, "STREAM.MSG.DELETE."+name, func(ctx context.Context) error { return stream.DeleteMsg(ctx, sequence) })
		}
		if err != nil {
			return fmt.Errorf("topology: move timer at sequence %d of %s: %w", sequence, name, err)
		}
	}
}

// moveTimer stores a timer anew, unless it has been set again since.
func moveTimer(ctx context.Context, b *bus.Bus, m *jetstream.RawStreamMsg) error {
	target := m.Header.Get(jetstream.ScheduleTargetHeader)
	if target == "" {
		return nil // what is left of one that was cancelled
	}
	moved := &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
	moved.Header[jetstream.ScheduleTargetHeader] = []string{b.Names().DueSubject(target)}
	moved.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
	pending, err := b.Send(ctx, moved)
	if err == nil {
		_, err = pending.Wait(ctx)
	}
	if errors.Is(err, bus.ErrConflict) {
		return nil
	}
	return err
}
