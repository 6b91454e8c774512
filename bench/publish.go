package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/terminal"
)

// publishFigures are events a second, until the last one is acknowledged.
type publishFigures struct {
	Events int       `json:"events"`
	Raw    []float64 `json:"raw_per_second"`
	Bus    []float64 `json:"bus_per_second"`
}

func (b *bench) publish(ctx context.Context) error {
	connect, err := b.single(ctx)
	if err != nil {
		return err
	}
	f := &publishFigures{Events: b.publishes}
	for rep := range b.reps {
		for _, way := range []struct {
			send func(context.Context, *hopbench.Stage, []event.Event) error
			to   *[]float64
		}{{publishRaw, &f.Raw}, {publishBus, &f.Bus}} {
			rate, err := publishRate(ctx, connect, b.publishes, way.send)
			if err != nil {
				return err
			}
			*way.to = append(*way.to, rate)
		}
		b.say("publish %d/%d: raw %s/s, bus %s/s", rep+1, b.reps, terminal.Number(int(f.Raw[rep])), terminal.Number(int(f.Bus[rep])))
	}
	b.results.Publish = f
	if err := b.title("publish, one replica, file: %s events of %d bytes, median of %d", terminal.Number(f.Events), hopbench.DataBytes, b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", ">events/s", ">to raw", "")
	table.Row("raw", terminal.Number(int(median(f.Raw))), "1.00", "PublishMsgAsync, headers written in place")
	table.Row("bus", terminal.Number(int(median(f.Bus))), ratio(median(f.Bus), median(f.Raw)), "PublishAsync: validated, encoded, each receipt read")
	_, err = table.WriteTo(b.out)
	return err
}

// publishRate publishes n events on a new stage and checks that they are stored.
func publishRate(ctx context.Context, connect bus.Config, n int, send func(context.Context, *hopbench.Stage, []event.Event) error) (rate float64, err error) {
	s, err := hopbench.Open(ctx, connect, hopbench.Prefix(), 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	events := make([]event.Event, n)
	for i := range events {
		d := hopbench.Draft(i)
		d.Type = hopbench.Out.Type() // what Verify counts
		if events[i], err = s.Bus.Seal(d); err != nil {
			return 0, err
		}
	}
	begun := time.Now()
	if err := send(ctx, s, events); err != nil {
		return 0, err
	}
	rate = float64(n) / time.Since(begun).Seconds()
	return rate, s.Verify(ctx, n)
}

// publishRaw writes what bus writes, with the client library alone.
func publishRaw(ctx context.Context, s *hopbench.Stage, events []event.Event) error {
	js, err := clientOf(s)
	if err != nil {
		return err
	}
	subject := s.Bus.Names().Root("events.") + string(hopbench.Out.Type()) + "."
	futures := make([]jetstream.PubAckFuture, len(events))
	for i, e := range events {
		key := event.Extension(e, event.ExtKey)
		m := &nats.Msg{
			Subject: subject + key,
			Header: nats.Header{
				nats.MsgIdHdr:        {e.ID()},
				"ce-specversion":     {"1.0"},
				"ce-id":              {e.ID()},
				"ce-source":          {e.Source()},
				"ce-type":            {e.Type()},
				"ce-time":            {e.Time().Format(time.RFC3339Nano)},
				"ce-datacontenttype": {e.DataContentType()},
				"ce-partitionkey":    {key},
				"ce-correlationid":   {key},
			},
			Data: e.Data(),
		}
		// A server that is slow for a moment makes the library give up.
		for futures[i], err = js.PublishMsgAsync(m); errors.Is(err, jetstream.ErrTooManyStalledMsgs); {
			futures[i], err = js.PublishMsgAsync(m)
		}
		if err != nil {
			return err
		}
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func publishBus(ctx context.Context, s *hopbench.Stage, events []event.Event) error {
	pending := make([]*bus.Pending, len(events))
	for i, e := range events {
		var err error
		if pending[i], err = s.Bus.PublishAsync(ctx, e); err != nil {
			return err
		}
	}
	for _, p := range pending {
		if _, err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
